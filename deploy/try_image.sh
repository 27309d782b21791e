#!/usr/bin/env bash
# Builds the image with buildah, which needs no Docker, runs it once as its ENTRYPOINT says and asks it for a reply.
#   deploy/try_image.sh [arguments of buildah build]      such as --build-arg BASE=... --secret id=pip,src=pip.conf
# Where containers cannot be nested: STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot deploy/try_image.sh ...
# The container shares this machine's network and listens on PORT (8000).
set -euo pipefail
cd "$(dirname "$0")/.."
export GANDER_PORT=${PORT:-8000}
IMAGE=localhost/gander:try
ADDRESS=http://127.0.0.1:$GANDER_PORT

buildah build --format docker --network host --tag "$IMAGE" "$@" .
container=$(buildah from "$IMAGE")
server=
finish() {
    # The server itself, not buildah, so that it stops as it would in any container.
    [ -z "$server" ] || pkill --pgroup "$server" --full '^/opt/gander/bin/python ' || true
    wait
    buildah rm "$container" >/dev/null
}
trap finish EXIT

in_container() { buildah run --network host --env "GANDER_PORT=$GANDER_PORT" "$container" -- "$@"; }
# Words of a command of the image's configuration, one a line: what Docker would run.
configured() { buildah inspect --format "{{range .Docker.Config.$1}}{{println .}}{{end}}" "$container" | sed '/^$/d'; }

buildah images "$IMAGE"
in_container id
mapfile -t entrypoint < <(configured Entrypoint)
mapfile -t check < <(configured Healthcheck.Test | tail -n +2)
printf 'runs:'; printf ' %q' "${entrypoint[@]}"; echo
set -m
in_container "${entrypoint[@]}" &
server=$!
set +m
for _ in $(seq 150); do
    kill -0 "$server"
    if in_container "${check[@]}" 2>/dev/null; then break; fi
    sleep 2
done
in_container "${check[@]}"
echo "healthy after ${SECONDS} s, build included"
curl -fsS "$ADDRESS/v1/completions" -H 'Content-Type: application/json' \
    -d '{"prompt": "def fibonacci(n):\n", "max_tokens": 40, "temperature": 0, "speculation": {"report": true}}'
echo
curl -fsS "$ADDRESS/metrics" | grep -E '^(gander|vllm)[a-z_:]*tokens_total'
