"""Checking and repairing a spool, and recovering frames from a raw image.

    examination       one segment file, examined byte by byte: its findings, and a map of its damage
    check             a whole spool, or single files; read-only
    metadata_check    index, marks, outcome files, ledger: read, then compared with the segments
    repair            plans a repair, and applies it: damaged segments are rewritten, good frames stay
    frame_recovery    frames in a disk image

Read `examination`, `check`, `repair`. Imports from all of spool; `brucectl inspect` and its tools import from
here.

    for finding in Check().spool(layout):
        print(finding)
"""
