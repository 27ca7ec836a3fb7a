"""NVIDIA Dynamo in front of Triton: Dynamo workers, and the fleet of processes that `lookahead serve` starts.

a request in a worker   engine -> request_tensors -> servers (failover) -> triton_stream; metrics
the processes           fleet -> services: spec, card; own_discovery, entries; membership, etcd
a switch                exchange, running_fleet
commands                batch; failover, failover_requests
"""
