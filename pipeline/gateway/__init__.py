"""The process that clients reach: checks their requests and passes them on to Triton and to the OpenAI front end."""
