# The whole server on a CPU: gateway, OpenAI front end, worker, Triton with the torch engine. Build from the checkout:
#   docker build -f deploy/cpu.Dockerfile -t lookahead:cpu --build-arg TORCH_INDEX=URL .
FROM docker.io/library/python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY . /app
# Without an index of CPU builds of torch, pip installs one with CUDA, several gigabytes larger.
ARG TORCH_INDEX=
RUN pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --constraint constraints.txt '.[dynamo]' \
    && useradd --uid 10001 --home-dir /data/home lookahead \
    && install --directory --owner lookahead /data /data/engines /data/cache /data/home
ENV HOME=/data/home LOOKAHEAD_ENGINES=/data/engines LOOKAHEAD_CACHE=/data/cache LOOKAHEAD_KERNELS=/opt/lookahead
# For the processor of this machine. On another one the first start compiles the loops again, into /data/cache.
WORKDIR /data
RUN python -m pipeline.engine.compilation
USER 10001
VOLUME /data
EXPOSE 8080 8000 8001 8002
ENTRYPOINT ["lookahead"]
CMD ["serve", "--set", "server.host=0.0.0.0"]
