"""The witness beside daemons, brokers and a mirror that makes faults: `tools/witness`.

To read it: `options`, `faults`, `planted` (a spool made by hand), `mirror`, `watcher` (the process of the
witness), `kills`, `judgement`, `proof`.
"""
