# The simulator as one command, for CI without a GPU (docs/trust.md):
#   docker build -t flash-steps-sim .
#   docker run --rm -u "$(id -u)" -v "$PWD":/src flash-steps-sim --analyse kernel.cu
FROM debian:12-slim
COPY . /flash-steps
RUN apt-get update && /flash-steps/scripts/setup.sh --yes && rm -rf /var/lib/apt/lists/*
RUN echo 'int main() {}' > /tmp/none.cu && /flash-steps/scripts/sim -o /dev/null /tmp/none.cu
WORKDIR /src
ENTRYPOINT ["/flash-steps/scripts/sim"]
