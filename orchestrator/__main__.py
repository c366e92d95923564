"""Entry point of ``python -m orchestrator`` and of the ``orchestrator`` script."""

import gc
import signal

from orchestrator.core.processes.process_setup import block_checkpoint_signal, set_up_process

COLLECT_AFTER = 50_000
"""Objects made and still there after which Python looks for cycles. Nearly all that a start makes
stays; looked for as often as Python does by itself, they would take a tenth of it."""


def main() -> None:
    # Until there is something to save, Ctrl-C ends the process at once, without a traceback from an
    # import.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    block_checkpoint_signal()  # `run` handles it
    set_up_process()
    gc.set_threshold(COLLECT_AFTER)
    from orchestrator import cli

    cli.main()


if __name__ == "__main__":
    main()
