"""Code inside the Triton server. The modules on the path of a request:

lookahead_bls         request_loop -> sequences -> bls: text_request, routing, fair_slots -> generation
  a call of it        steps, call_costs -> call_tensors -> engine_binding -> model_calls, or for TensorRT-LLM's streams
                      stream_calls, own_server -> call_results -> text_stream, token_output -> piece
tensorrt_llm_engine   engine_calls -> pipeline.engine.scheduler -> engine_answers
others                single_response: models for `infer`. text_tensors: preprocessing and postprocessing

values                tensors, guide_tensors, text_codec
Triton's API          triton, given_up, sibling_stops
figures               metrics, spans, request_spans, side_channel
start and end         learned, handover, drain_lock
"""
