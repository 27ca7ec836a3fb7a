"""Gateway process: authenticates and checks client requests, and forwards them to Triton or the OpenAI front end."""
