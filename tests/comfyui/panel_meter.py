"""A node pack for tests alone: measures what the panel costs the training, and what it sends.

The tests copy this file into ``custom_nodes``; ComfyUI's interpreter runs it. Times are CPU time
of the thread, so that other programs do not count.
"""

import importlib
import sys
import time
from contextlib import contextmanager

from aiohttp import web
from server import PromptServer

NODE_CLASS_MAPPINGS = {}
OURS = "adapter_trainer."
SHOWN = {"progress", "progress_state", "progress_text"}


class Meter:
    """Sums of one run; ``start`` begins again."""

    def __init__(self):
        self.installed = False
        self.start()

    def start(self):
        self.steps, self.first, self.last = 0, 0.0, 0.0
        self.spent = {"observer": 0.0, "server": 0.0}
        self.notified, self.sent = [], []

    def install(self):
        """Wrap the observer and the server's sending; once."""
        if self.installed:
            return
        self.installed = True
        # The pack loads it with its first run.
        (package,) = (name for name in sys.modules if name.endswith("adapter-trainer.nodes"))
        module = importlib.import_module(f"{package}.services.panel.run_observer")
        observer, server = module.NodeObserver, PromptServer.instance
        notify, requests, queue, send = (
            observer.notify,
            observer.requests,
            server.send_sync,
            server.send,
        )

        def measured_notify(own, event):
            with self.measuring("observer"):
                notify(own, event)
            if type(event).__name__ == "StepDone":
                self.step()

        def measured_requests(own):
            with self.measuring("observer"):
                return requests(own)

        def noted(event, data, sid=None):
            if str(event).startswith(OURS):
                self.sent.append([time.monotonic(), event, data.get("status")])
            queue(event, data, sid)

        async def measured_send(event, data, sid=None):
            if not (str(event).startswith(OURS) or str(event) in SHOWN):
                await send(event, data, sid)
                return
            with self.measuring("server"):
                await send(event, data, sid)

        observer.notify, observer.requests = measured_notify, measured_requests
        server.send_sync, server.send = noted, measured_send

    @contextmanager
    def measuring(self, whose):
        begin = time.thread_time()
        yield
        if self.steps:
            self.spent[whose] += time.thread_time() - begin

    def step(self):
        """Everything is counted from the end of the first step to the end of the last."""
        now = time.thread_time()
        self.notified.append(time.monotonic())
        if not self.steps:
            self.first = now
        self.steps += 1
        self.last = now


METER = Meter()
routes = PromptServer.instance.routes


@routes.post("/panel_meter/start")
async def start(request):
    METER.install()
    METER.start()
    return web.json_response({})


@routes.get("/panel_meter")
async def read(request):
    return web.json_response(
        {
            "steps": METER.steps - 1,
            "training_seconds": METER.last - METER.first,
            "observer_seconds": METER.spent["observer"],
            "server_seconds": METER.spent["server"],
            "notified": METER.notified,
            "sent": METER.sent,
        }
    )
