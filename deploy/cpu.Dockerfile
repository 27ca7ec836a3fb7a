# The whole server on a CPU: gateway, OpenAI front end, worker, Triton with the torch engine. Build from the checkout:
#   docker build -f deploy/cpu.Dockerfile -t lookahead:cpu .
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev libgomp1 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY . /app
RUN pip install --no-cache-dir --constraint constraints.txt '.[dynamo]' \
    && useradd --uid 10001 --create-home lookahead \
    && install --directory --owner lookahead /data/engines /data/cache
ENV LOOKAHEAD_ENGINES=/data/engines LOOKAHEAD_CACHE=/data/cache
USER 10001
VOLUME /data
EXPOSE 8080 8000 8001 8002
ENTRYPOINT ["lookahead"]
CMD ["serve", "--set", "server.host=0.0.0.0"]
