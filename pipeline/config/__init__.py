"""Configuration of models and profiles: schema, loading, resolution."""
