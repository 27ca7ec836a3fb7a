"""NVIDIA Dynamo in front of Triton: Dynamo workers, and the fleet of processes that `lookahead serve` starts.

a request in a worker   engine -> request_tensors -> servers (failover) -> triton_stream -> output_text; metrics
the processes           fleet -> services: spec, model_card; own_discovery, discovery_entries; membership, etcd
a switch                fleet_switch, running_fleet
commands                openai_batch; failover, failover_requests
"""
