"""``python -m orchestrator``."""

import signal

# Until there is something to save, Ctrl-C simply ends us, without a traceback of whatever is being imported.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from orchestrator.cli import main

if __name__ == "__main__":
    main()
