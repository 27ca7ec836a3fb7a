"""NVIDIA Dynamo in front of Triton: Dynamo workers, and the fleet of processes that `lookahead serve` starts."""
