"""The sockets that messages come to: made here, kept by a holder, or handed over by the service manager.

Read `inputs` first: an input of the configuration, and the set of inputs that a reload changes. `listening`
makes each socket. `holding` is `bruce hold-socket` and the way to its sockets, and the store of accepted
connections; `holder` is the program that it becomes, which imports nothing of bruce.

The daemon's supervisor, commands, and the stream worker use this folder. Of this package it imports `errors`
alone, and it reads no message.

    inputs = Inputs([], [Input(DATAGRAM, Path("/run/bruce/socket"))])
    receivers = [door.socket for door in inputs.of(DATAGRAM)]
"""
