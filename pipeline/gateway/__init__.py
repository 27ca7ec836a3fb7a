"""Gateway process: authenticates and checks client requests, and forwards them to Triton or the OpenAI front end.

Triton over HTTP   http_app -> generate_body, infer_body -> forward -> upstream
Triton over gRPC   grpc_app -> grpc_message, grpc_stream -> pipeline.triton_grpc
OpenAI API         http_app -> openai_body -> openai_fields: openai_types, tool_guides, response_guides, annotations
                   -> openai_output -> front_end -> upstream -> event_stream, resumption -> rewriting
                   -> chunk_aggregation
Responses API      as the OpenAI API, with responses_request -> openai_body and rewriting -> responses_output
every request      connections, request_headers, bodies, tenants; upstream_errors, refusal, response_writer
servers behind     spec, deployment, metrics_page
description        openapi_page
"""
