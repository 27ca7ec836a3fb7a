"""The engine backends, each behind `pipeline.engine.backend.Backend`, one folder or file each."""
