"""Code inside the Triton server. The modules on the path of a request:

lookahead_bls         request_loop -> sequences -> bls: text_request, routing, fair_slots -> generation
  a call of it        call_planning, call_costs -> call_tensors -> engine_binding -> model_calls, or for streams of
                      TensorRT-LLM stream_calls, own_server -> call_results -> text_stream, token_output
                      -> partial_output
tensorrt_llm_engine   engine_calls -> pipeline.engine.scheduler -> engine_responses
others                single_response: models for `infer`. text_tensors: preprocessing and postprocessing

values                tensors, guide_tensors, text_codec
Triton's API          python_backend, abandoned_calls, sibling_stops
figures               metrics, spans, request_spans, side_channel
start and end         learned_state_store, handover, drain_lock
"""
