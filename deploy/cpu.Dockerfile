# The whole server on a CPU: gateway, OpenAI front end, worker, Triton with the torch engine. Build from the checkout:
#   docker build -f deploy/cpu.Dockerfile -t lookahead:cpu .
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev libgomp1 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY . /app
# PyPI has torch with CUDA only, several gigabytes.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu --constraint constraints.txt \
        '.[dynamo]' \
    && useradd --uid 10001 --home-dir /data/home lookahead \
    && install --directory --owner lookahead /data /data/engines /data/cache /data/home
ENV HOME=/data/home LOOKAHEAD_ENGINES=/data/engines LOOKAHEAD_CACHE=/data/cache LOOKAHEAD_KERNELS=/opt/lookahead
# For the processor of this machine. On another one the first start compiles the loops again, into /data/cache.
RUN cd / && python -m pipeline.engine.compilation
USER 10001
VOLUME /data
EXPOSE 8080 8000 8001 8002
ENTRYPOINT ["lookahead"]
CMD ["serve", "--set", "server.host=0.0.0.0"]
