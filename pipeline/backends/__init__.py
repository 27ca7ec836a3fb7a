"""The engine backends, one folder or file each, all with the interface `pipeline.engine.backend.Backend`."""
