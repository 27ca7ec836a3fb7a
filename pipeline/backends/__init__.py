"""The engine backends, one module or package each, with the interface `pipeline.engine.backend.Backend`."""
