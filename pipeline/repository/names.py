"""Names in a model repository that clients and servers share; those of engines: `engine.tensorrt_llm.instance`."""

FRONT_MODEL = "lookahead_bls"
# The same model under the name that TensorRT-LLM's own clients ask for.
STOCK_FRONT_MODEL = "tensorrt_llm_bls"

CONFIG = "config.pbtxt"
VERSION = "1"
