"""The front door: command line, configuration, and the wiring of processes.

- `cli`, `commands`: `esker COMMAND`; `commands.spark` has the jobs.
- `client`: the Kafka client and the requests behind the commands.
- `dump`: shows what is in a file, a checkpoint or an object.
- `settings`: parses and checks a node's properties.
- `server`: formats a log directory, builds a node by its roles, and runs its process.
- `dev`: the embedded cluster of `esker dev`, below one directory.
- `doctor`: checks what a machine lacks.

It is the only room that imports all others: a lower room that needs a higher one gets it here.
"""
