# The whole server on an NVIDIA GPU, in NVIDIA's container with TensorRT-LLM and Triton. Build from the checkout:
#   docker build -f deploy/gpu.Dockerfile -t lookahead:gpu --build-arg TORCH_INDEX=URL .
ARG BASE=nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3
FROM ${BASE}
WORKDIR /app
COPY . /app
# The container's Python keeps its versions and gets what the served models import. `lookahead` needs other versions, so it
# has a Python environment of its own, made without ensurepip, which Ubuntu's Python lacks.
# Without an index of CPU builds of torch, pip installs one with CUDA there: several gigabytes more, which only the torch
# engine needs.
ARG TORCH_INDEX=
RUN python3 -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9_.-]+==' > /tmp/present.txt \
    && python3 -m pip install --no-cache-dir --constraint /tmp/present.txt --requirement docker/requirements.txt \
    && python3 -m venv --without-pip /opt/venv \
    && PIP_CONSTRAINT= python3 -m pip --python /opt/venv/bin/python install --no-cache-dir \
       ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --constraint constraints.txt pip --editable '.[dynamo]' \
    && useradd --uid 10001 --home-dir /data/home lookahead \
    && install --directory --owner lookahead /data /data/engines /data/cache /data/home
ENV HOME=/data/home LOOKAHEAD_ENGINES=/data/engines LOOKAHEAD_CACHE=/data/cache LOOKAHEAD_KERNELS=/opt/lookahead
# For the processor of this machine. On another one the first start compiles the loops again, into /data/cache.
WORKDIR /data
RUN PYTHONPATH=/app python3 -m pipeline.engine.compilation && /opt/venv/bin/python -m pipeline.engine.compilation
USER 10001
VOLUME /data
EXPOSE 8080 8000 8001 8002
ENTRYPOINT ["/opt/venv/bin/lookahead"]
CMD ["serve", "--set", "server.host=0.0.0.0"]
