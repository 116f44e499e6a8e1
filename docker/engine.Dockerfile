# The model server: vLLM's own image with our loader plugin. ACCELERATOR is cuda, rocm or cpu:
#   docker build -f docker/engine.Dockerfile --build-arg ACCELERATOR=cuda -t guanaco-engine:0.1.0-cuda .
ARG ACCELERATOR=cuda

FROM python:3.11.13-slim-bookworm AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY requirements/image-build.txt requirements/
RUN pip install --no-deps --require-hashes -r requirements/image-build.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY guanaco guanaco
COPY cli cli
COPY server server
COPY migrations migrations
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

FROM vllm/vllm-openai:v0.32.0 AS engine-cuda
FROM vllm/vllm-openai-rocm:v0.32.0 AS engine-rocm
FROM vllm/vllm-openai-cpu:v0.32.0 AS engine-cpu

FROM engine-${ACCELERATOR}
ARG ACCELERATOR
ARG REVISION=unknown
LABEL org.opencontainers.image.title="guanaco-engine" \
      org.opencontainers.image.description="Guanaco: vLLM with the loader plugin (${ACCELERATOR})" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY requirements/image-engine.txt /tmp/image-engine.txt
# Only what vLLM's image lacks, all pure Python; without dependencies, so that nothing of vLLM's is replaced.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    python3 -m pip install --no-cache-dir --no-deps --require-hashes -r /tmp/image-engine.txt \
 && python3 -m pip install --no-cache-dir --no-deps /wheels/*.whl \
 && rm /tmp/image-engine.txt
# Caches of vLLM, Triton and torch go to /tmp, which is to be mounted: the root file system may be read-only.
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    XDG_CACHE_HOME=/tmp/cache \
    HF_HOME=/tmp/huggingface \
    VLLM_NO_USAGE_STATS=1
USER 10001:10001
ENTRYPOINT []
CMD ["python3", "-m", "guanaco_server.engine.serve", "--help"]
