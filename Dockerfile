# `pack` and the reader in an image, for the CPU or with CUDA.
#
#   docker build -t pixpack .
#   docker run --rm --init -v /data:/data pixpack /data/images /data/out --size 224 --resume
#
# The same line continues what was interrupted, which is /data/out.packing until it is finished: so mount the folder above OUT.
#
# TORCH_INDEX is the index of torch's builds for the CPU, or for one version of CUDA, as PyTorch's installation page names it. Without it pip
# takes the default build, with CUDA.
#
#   docker build -t pixpack --build-arg TORCH_INDEX=URL .
#   docker build -t pixpack:cuda --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .
#   docker run --rm --gpus all -v /data:/data --entrypoint python pixpack:cuda /app/examples/train.py /data/out
ARG BASE=ubuntu:24.04
FROM ${BASE}
ARG TORCH_INDEX=
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# versions are those of the release that BASE names: a pinned one is gone from its archive after the next fix
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv libturbojpeg libjpeg-turbo8 \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv

WORKDIR /app
COPY . .
# the compiler stays out of the image; torch comes first, so that nothing else decides which build it is
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libjpeg-dev python3-dev \
    && pip install ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "$(grep -o '^torch==[^ ]*' scripts/constraints.txt)" \
    && grep -v '^torch==' scripts/constraints.txt >/tmp/constraints.txt \
    && pip install -c /tmp/constraints.txt . \
    && rm /tmp/constraints.txt \
    && apt-get purge -y --auto-remove gcc libc6-dev libjpeg-dev python3-dev \
    && rm -rf /var/lib/apt/lists/* build \
    && pack doctor

ENTRYPOINT ["pack"]
CMD ["--help"]
