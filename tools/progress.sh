#!/usr/bin/env bash
# Run a command that takes minutes in silence: say every few seconds what it has come to, and show all it said if it fails.
set -euo pipefail
said=$(mktemp)
"$@" >"$said" 2>&1 &
command=$!
trap 'kill "$command" 2>/dev/null || :; rm -f "$said"' EXIT
while kill -0 "$command" 2>/dev/null; do
  for _ in {1..25}; do
    sleep 0.2
    kill -0 "$command" 2>/dev/null || break 2
  done
  echo "  $SECONDS s: $(tail -n 1 "$said" | cut -c -120)"
done
wait "$command" || { code=$?; cat "$said"; exit "$code"; }
