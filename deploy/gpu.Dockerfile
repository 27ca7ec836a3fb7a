# The same on an NVIDIA GPU, in NVIDIA's container with TensorRT-LLM and Triton. Build from the checkout:
#   docker build -f deploy/gpu.Dockerfile -t lookahead:gpu .
ARG BASE=nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3
FROM ${BASE}
WORKDIR /app
COPY . /app
# The container's packages are not changed.
RUN python3 -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9_.-]+==' > /tmp/present.txt \
    && python3 -m pip install --no-cache-dir --constraint /tmp/present.txt --requirement docker/requirements.txt \
    && python3 -m pip install --no-cache-dir --no-deps . \
    && python3 -m pip install --no-cache-dir --constraint /tmp/present.txt 'ai-dynamo>=1.4.2,<1.5' \
    && useradd --uid 10001 --home-dir /data/home lookahead \
    && install --directory --owner lookahead /data /data/engines /data/cache /data/home
ENV HOME=/data/home LOOKAHEAD_ENGINES=/data/engines LOOKAHEAD_CACHE=/data/cache LOOKAHEAD_KERNELS=/opt/lookahead
# For the processor of this machine. On another one the first start compiles the loops again, into /data/cache.
RUN cd / && python3 -m pipeline.engine.compilation
USER 10001
VOLUME /data
EXPOSE 8080 8000 8001 8002
ENTRYPOINT ["lookahead"]
CMD ["serve", "--set", "server.host=0.0.0.0"]
