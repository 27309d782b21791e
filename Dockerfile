# Gander's image. The first stage installs into /opt/gander, the second is the base with that folder and a user.
#   docker build -t gander:cpu .                              for CPUs
#   docker build -t gander:cuda --build-arg DEVICE=cuda .     for NVIDIA GPUs
# BASE can be pinned by digest (python:3.13-slim@sha256:...) and may be any image with Python 3.11 to 3.13 and pip.
# docs/deployment.md has the rest, also what TORCH_INDEX_URL is for.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
# An index to take torch from, and nothing else. Empty: pip's own, whose torch for x86-64 carries CUDA.
ARG TORCH_INDEX_URL=
WORKDIR /src
COPY pyproject.toml constraints.txt ./
# A secret named pip, if given, is pip's configuration while it installs, and in no layer.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /opt/gander \
    && python3 -m pip --python /opt/gander install --no-cache-dir --no-deps \
       ${TORCH_INDEX_URL:+--index-url "${TORCH_INDEX_URL}"} "$(grep '^torch==' constraints.txt)" \
    && find /opt/gander -path '*/torch/test/*' -delete -o -path '*/torch/include/*' -delete -o -path '*/torch/bin/test_*' -delete
ARG DEVICE=cpu
# For a GPU also what reads weights straight to it.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -c "import sys, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
       print(*project['dependencies'], *project['optional-dependencies']['gpu'] * (sys.argv[1] != 'cpu'), sep='\n')" "${DEVICE}" \
       > requirements.txt \
    && python3 -m pip --python /opt/gander install --no-cache-dir --constraint constraints.txt -r requirements.txt
RUN /opt/gander/bin/python -c "import sys, torch; sys.exit(sys.argv[1] != 'cpu' and not torch.version.cuda \
    and 'DEVICE=' + sys.argv[1] + ', but this torch has no CUDA')" "${DEVICE}"
COPY . .
# Numba takes a kernel for stale when its source's time changed; layers keep whole seconds only, so the files do too.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m pip --python /opt/gander install --no-cache-dir --no-deps . \
    && find /opt/gander -path '*/decoding/*.py' -exec sh -c 'for file; do touch -d "@$(stat -c %Y "$file")" "$file"; done' sh {} +

FROM ${BASE}
ARG DEVICE=cpu
LABEL org.opencontainers.image.title="Gander" \
      org.opencontainers.image.description="OpenAI-compatible inference server with tree speculative decoding" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/gander/bin:$PATH \
    GANDER_DEVICE=${DEVICE} \
    HF_HOME=/cache/huggingface \
    NUMBA_CACHE_DIR=/cache/numba \
    TRITON_CACHE_DIR=/cache/triton
# Triton builds a small C module at run time. A base without Debian's packages has to bring a compiler.
# hadolint ignore=DL3008
RUN test "${DEVICE}" = cpu || command -v gcc > /dev/null || { apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; }
# The caches belong to group 0 as well, for platforms that choose a user id of their own.
RUN useradd --uid 10001 --create-home gander \
    && install --directory --owner=gander --group=root --mode=2775 /cache/huggingface /cache/numba /cache/triton
COPY --from=build /opt/gander /opt/gander
USER 10001:10001
WORKDIR /home/gander
# Loading the bundled model compiles what serving calls, into a folder of /cache/numba named after the sources. The kernels
# are for this CPU: on another one they are ignored and made anew at the first start, which then takes a minute longer.
RUN python -c "from decoding.config import EngineConfig; from decoding.engine.start import load_engine; \
    load_engine(EngineConfig(device='cpu'))" \
    && chmod -R g=u /cache/numba
RUN test "${DEVICE}" = cpu || { python -m decoding.kernels.gpu.toolchain && chmod -R g=u /cache/triton; }
VOLUME ["/cache/huggingface"]
EXPOSE 8000
# http.client heeds no proxy variables.
HEALTHCHECK --interval=15s --timeout=5s --start-period=1800s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; asked = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('GANDER_PORT', 8000)), timeout=4); asked.request('GET', '/ready'); sys.exit(asked.getresponse().status != 200)"]
ENTRYPOINT ["gander", "serve", "--host", "0.0.0.0"]
