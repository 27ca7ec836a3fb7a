"""The TensorRT-LLM backend, release line 1.2."""

# Below an engines folder of a model: what stages leave for later builds.
STAGES = ".tensorrt_llm"
