#!/bin/sh
# kcat produces numbers to a topic. See README.md above for the arguments. It has no headers of single
# records, and says nothing of single acknowledgements: all are noted when it ends well. Without -E it ends
# when a cluster of one broker closes its connection.
set -eu
first=$3 last=$(($3 + $4 - 1)) said=$(mktemp)
trap 'rm -f "$said"' EXIT
seq "$first" "$last" | awk -v per_second="${6:-1000000}" '
    { print $1 % 10 ":" $1 }
    NR % 20 == 0 && per_second < 1000000 { fflush(); system("sleep " 20 / per_second) }
' | kcat -P -E -b "$1" -t "$2" -K : -X acks=all -X enable.idempotence=true -X batch.size=4096 \
    -X message.timeout.ms=180000 2>"$said" || { cat "$said" >&2; exit 1; }
cat "$said" >&2
! grep -q "Delivery failed" "$said" || exit 1
seq "$first" "$last" | sed 's/$/ -1 -1/' >"$5"
