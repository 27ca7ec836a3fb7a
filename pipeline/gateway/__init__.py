"""The gateway process: checks the requests of clients and forwards them to Triton and to the OpenAI front end."""
