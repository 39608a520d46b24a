"""The serving loop: passes on an absolute clock, so that a late timer never shifts what follows."""

import time

from runner.engines.simulated.bodies import Base
from runner.engines.simulated.children import Children
from runner.engines.simulated.failures import FORWARD, Death, last_line
from runner.engines.simulated.faults import Fault
from runner.engines.simulated.launch import Launch
from runner.engines.simulated.log import Log
from runner.engines.simulated.loop import Loop
from runner.engines.simulated.metrics import Measures
from runner.engines.simulated.outputs import Distortion, Outputs
from runner.engines.simulated.prefix import PrefixCache
from runner.engines.simulated.scheduler import Job, Scheduler, Step
from runner.engines.simulated.trace import Recorder

WATCH_S = 0.2  # between two looks at the children
SLIP_S = 0.5  # later than this the clock is set anew instead of running after it


class Service:
    """Owns the scheduler and everything that happens between ready and the end."""

    def __init__(self, launch: Launch, log: Log, loop: Loop, children: Children) -> None:
        self.launch = launch
        self.log = log
        self.loop = loop
        self.children = children
        self.measures = Measures()
        self.recorder = Recorder(launch)
        self.scheduler = Scheduler(launch.limits, launch.cost, launch.step_noise(), PrefixCache(not launch.args.get("disable_radix_cache")))
        compute = launch.simulation["compute"]
        self.outputs = Outputs(
            launch.model,
            f"{launch.seed}/outputs",
            jitter=compute.get("logprob_jitter", 0.002),
            flip_share=compute.get("token_flip_share", 0.0),
            dummy=launch.args.get("load_format") == "dummy",
        )
        wrong, nan = launch.fault("wrong_output"), launch.fault("nan")
        if wrong is not None or nan is not None:
            self.outputs.distortion = Distortion((wrong.value or 0.5) if wrong else 0.0, nan is not None)
        self.jobs: dict[str, Job] = {}
        self.ready = False
        self.frozen = False
        self.stream_fault: Fault | None = None
        self.received = 0
        self._scale = float(launch.simulation["time_scale"])
        self._step: Step | None = None
        self._clock = 0.0
        self._tokens_logged = 0
        self._logged_at = time.monotonic()
        self._decode_steps = 0
        self._interval = int(launch.args.get("decode_log_interval") or 40)

    @property
    def busy(self) -> bool:
        return bool(self.jobs)

    def begin(self) -> None:
        """From ready on: faults that come by time, and a regular look at the children."""
        for fault in self.launch.faults:
            if fault.at == "load" and fault.after_s is not None:
                self.loop.after(fault.after_s, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        self._watch_children()

    def submit(self, job: Job, sink: Base) -> None:
        """Takes a request in."""
        self.jobs[sink.rid] = job
        sink.connection.on_close = lambda: self.gone(sink.rid)
        self.scheduler.add(job)
        if self.ready:
            self.received += 1
            for fault in self.launch.faults:
                if fault.at == "load" and fault.after_requests is not None and self.received == fault.after_requests:
                    self._strike(fault)
        if self._step is None:
            self._clock = time.monotonic()
            self._plan()

    def gone(self, rid: str) -> None:
        """The client went away, or asked to abort."""
        job = self.jobs.pop(rid, None)
        if job is not None:
            self.scheduler.abort(job)

    def abort(self, rid: str) -> None:
        """Ends a request with finish_reason abort."""
        job = self.jobs.get(rid)
        if job is not None and isinstance(job.sink, Base):
            self.scheduler.abort(job)
            job.sink.fail(503, "Aborted by AbortReq.")

    def finished(self, sink: Base) -> None:
        """Called by a sink when its answer is complete."""
        self.jobs.pop(sink.rid, None)
        sink.connection.on_close = None
        if sink.first:
            self.measures.finished(sink.arrived, sink.admitted or sink.arrived, sink.first, sink.last, len(sink.ids))

    def _plan(self) -> None:
        if self.frozen:
            return
        step = self.scheduler.next_step()
        for full in self.scheduler.retractions:
            self.log.line(
                f"KV cache pool is full. Retract requests. #retracted_reqs: {full.requests}, #new_tokens_gained: {full.tokens}, "
                f"#new_token_ratio: {full.old_ratio:.4f} -> {full.new_ratio:.4f}",
                0,
            )
        self.scheduler.retractions.clear()
        self._step = step
        if step is None:
            return
        if step.kind == "prefill":
            for job in step.jobs:
                if isinstance(job.sink, Base) and not job.sink.admitted:
                    job.sink.admitted = self._clock
        self._clock += step.seconds * self._scale
        self.loop.at(self._clock, self._end_of_step)

    def _end_of_step(self) -> None:
        step = self._step
        if step is None or self.frozen:
            return
        lag = time.monotonic() - self._clock
        self.measures.lag(lag)
        if lag > SLIP_S:
            self.measures.slips += 1
            self._clock = time.monotonic()
        if self.recorder.active:
            self.recorder.step(step, self._clock, self._scale)
        fault = self.stream_fault
        for job, count in self.scheduler.finish(step):
            sink = job.sink
            if not isinstance(sink, Base):
                continue
            if fault is not None and job.generated > job.output // 2:
                self._spoil(fault, sink, job)
            else:
                sink.push(job, count)
        self._log_step(step)
        self._plan()

    def _spoil(self, fault: Fault, sink: Base, job: Job) -> None:
        self.scheduler.abort(job)
        if fault.kind == "stream_error":
            sink.fail(500, "CUDA error: an illegal memory access was encountered")
        else:
            sink.cut()

    def _log_step(self, step: Step) -> None:
        scheduler = self.scheduler
        usage = scheduler.used_tokens / max(1, scheduler.limits.pool_tokens)
        label = "cuda graph" if self.launch.node.capability else "cpu graph"
        if step.kind == "prefill":
            elapsed = max(1e-6, step.seconds * self._scale)
            self.log.line(
                f"Prefill batch, #new-seq: {step.new_sequences}, #new-token: {step.new_tokens}, #cached-token: {step.cached_tokens}, "
                f"token usage: {usage:.2f}, #running-req: {step.running}, #queue-req: {step.queued}, #pending-token: {step.pending}, "
                f"{label}: False, input throughput (token/s): {step.new_tokens / elapsed:.2f}",
                0,
            )
            if self.outputs.distortion.nan:
                self.log.line("Detected errors during sampling! NaN in the logits.", 0)
            return
        self._decode_steps += 1
        self.measures.graph = step.graph
        if self._decode_steps % self._interval:
            return
        now = time.monotonic()
        made = scheduler.totals.generated
        self.measures.gen_throughput = (made - self._tokens_logged) / max(1e-6, now - self._logged_at)
        self._tokens_logged, self._logged_at = made, now
        self.log.line(
            f"Decode batch, #running-req: {step.running}, #token: {scheduler.used_tokens}, token usage: {usage:.2f}, "
            f"{label}: {step.graph}, gen throughput (token/s): {self.measures.gen_throughput:.2f}, #queue-req: {len(scheduler.waiting)}",
            0,
        )

    def _strike(self, fault: Fault) -> None:
        launch = self.launch
        if fault.kind in ("stream_error", "truncated_stream"):
            self.stream_fault = fault
        elif fault.kind == "hang":
            self.frozen = True
            self.loop.after(float(launch.args.get("watchdog_timeout") or 300), self._watchdog)
        elif fault.kind == "os_oom":
            self.frozen = True  # without a scheduler no token comes, whatever the parent does about it
            self.children.kill("scheduler")
        elif fault.kind in ("crash", "cuda_oom", "nccl_error"):
            last = last_line(fault.kind, "load", launch.node.memory_gb or 20.0)
            # the requests in flight see the end of their connection, nothing more
            self.loop.after(0.05, lambda: Death(self.log, self.children, launch.version).by_scheduler(FORWARD, last, running=True))

    def _watchdog(self) -> None:
        self.log.line(f"Scheduler watchdog timeout (self.watchdog_timeout={self.launch.args.get('watchdog_timeout')}, self.soft=False)", 0)
        self.log.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
        Death(self.log, self.children, self.launch.version).by_kill()

    def _watch_children(self) -> None:
        self._children_died()
        self.loop.after(WATCH_S, self._watch_children)

    def _children_died(self) -> None:
        for name, pid, code in self.children.poll():
            if name.startswith("scheduler") or self.launch.version < (0, 5, 10):
                self.frozen = True
            if self.launch.version < (0, 5, 10):
                continue  # no watchdog over subprocesses yet: HTTP goes on without anything behind it
            shown = name.replace("_TP", "_") if "_TP" in name else "scheduler_0" if name == "scheduler" else name
            self.log.line(f"Subprocess {shown} (pid={pid}) crashed with exit code {code}. Triggering SIGQUIT for cleanup...")
            self.log.line("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
            Death(self.log, self.children, self.launch.version).by_kill()
