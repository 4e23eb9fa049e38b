"""`brucectl doctor`: what is wrong on a host, or could be better: findings, each with its remedy.

Read `finding` and `examination` first: the latter makes all checks. A check is a pure function of what was
read, and `look` of its module reads: `host`, `disk`, `spools`, `kafka`. A thing that cannot be read is a
finding, and nothing is guessed from it. `plan` says how long Kafka may be away. Nothing is changed.

Commands may import this folder. It imports `config`, `status` and `terminal`.

    for found in Examination(None).findings():
        print(found.level, found.sentence, found.remedy)
"""
