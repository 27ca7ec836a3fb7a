"""What generates in a bench: engines in process, servers, baselines."""
