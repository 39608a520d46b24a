"""What each path answers."""

import json
import time
from collections.abc import Callable
from typing import Any

from runner.engines.simulated.bodies import Base, GenerateStream, GenerateWhole, OpenAiStream, OpenAiWhole, Style, Wanted
from runner.engines.simulated.http import REASONS, Connection, Request
from runner.engines.simulated.metrics import metrics_text
from runner.engines.simulated.scheduler import Job
from runner.engines.simulated.service import Service
from runner.engines.simulated.startup import model_path, resolved_args


class BadRequest(Exception):
    """Answered with 400 and {"error": {"message": ...}}."""


class Routes:
    """Dispatches requests to the service."""

    def __init__(self, service: Service, port: int, startup_s: dict[str, float]) -> None:
        self._service = service
        self._port = port
        self._startup_s = startup_s
        launch = service.launch
        args = launch.args
        self._path = model_path(launch)
        self._name = str(args.get("served_model_name") or self._path)
        self._style = Style(
            version=launch.version,
            model_name=self._name,
            incremental=bool(args.get("stream_output") or args.get("incremental_streaming_output")),
            with_text=not args.get("skip_tokenizer_init"),
            interval=int(args.get("stream_interval") or 1),
            with_metrics=bool(args.get("enable_metrics")),
            cache_report=bool(args.get("enable_cache_report")),
        )
        generate: dict[str, Callable[[Connection, Request], int]] = {
            "/generate": self._generate,
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
        }
        self._table: dict[str, Callable[[Connection, Request], int]] = {
            **generate,
            "/health": self._health,
            "/health_generate": self._health,
            "/ping": self._ping,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/model_info": self._model_info,
            "/get_model_info": self._model_info,
            "/v1/models": self._models,
            "/v1/loads": self._loads,
            "/flush_cache": self._flush,
            "/abort_request": self._abort,
            "/metrics": self._metrics,
            "/start_profile": self._start_profile,
            "/stop_profile": self._stop_profile,
            "/freeze_gc": self._ping,
        }

    def handle(self, connection: Connection, request: Request) -> None:
        """Answers one request, or leaves it to the service to answer."""
        service = self._service
        answer = self._table.get(request.path)
        if answer is None:
            connection.respond(404, b'{"detail":"Not Found"}')
            status = 404
        else:
            try:
                status = answer(connection, request)
            except BadRequest as error:
                status = 400
                connection.respond(400, _json({"error": {"message": str(error)}}))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                status = 400
                message = f"1 validation error:\n  {{'type': 'json_invalid', 'msg': {str(error)!r}}}"
                connection.respond(400, _json({"object": "error", "message": message, "type": "Bad Request", "param": None, "code": 400}))
        if status:
            target = f"{request.path}?{request.query}" if request.query else request.path
            service.log.access(request.peer, request.method, target, status, REASONS[status])

    def _ping(self, connection: Connection, _request: Request) -> int:
        connection.respond(200)
        return 200

    def _health(self, connection: Connection, _request: Request) -> int:
        service = self._service
        if not service.ready:
            connection.respond(503)
            return 503
        if service.frozen:
            since = time.strftime("%H:%M:%S")
            service.loop.after(20.0, lambda: self._unhealthy(connection, since))
            return 0
        connection.respond(200)
        return 200

    def _unhealthy(self, connection: Connection, since: str) -> None:
        self._service.log.line(
            "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. "
            f"tic start time: {since}. last_heartbeat time: {since}"
        )
        connection.respond(503)

    def _server_info(self, connection: Connection, request: Request) -> int:
        service, launch = self._service, self._service.launch
        if service.frozen:
            return 0  # it asks the scheduler, which does not answer
        if request.path == "/get_server_info":
            service.log.line(
                "Endpoint '/get_server_info' is deprecated and will be removed in a future version. Please use '/server_info' instead."
            )
        shown = dict(resolved_args(launch, self._port))
        state = {
            **shown,
            "last_gen_throughput": service.measures.gen_throughput,
            "memory_usage": {
                "weight": round(launch.model.weight_gb / max(1, launch.tp), 2),
                "kvcache": round(launch.limits.pool_tokens * launch.cost.costs.kv_bytes / 1e9, 2),
                "token_capacity": launch.limits.pool_tokens,
                "graph": 0.08,
            },
            "effective_max_running_requests_per_dp": launch.limits.max_running,
        }
        body = {
            **shown,
            "status": "ready" if service.ready else "starting",
            "max_total_num_tokens": launch.limits.pool_tokens,
            "max_req_input_len": launch.model.max_context - 6,
            "internal_states": [state],
            "version": launch.version_text,
            "kv_events": None,
            "simulated": True,
        }
        if launch.version >= (0, 5, 20):
            body["startup_time"] = {name: round(seconds, 3) for name, seconds in self._startup_s.items()}
        connection.respond(200, _json(body))
        return 200

    def _model_info(self, connection: Connection, request: Request) -> int:
        launch = self._service.launch
        if request.path == "/get_model_info":
            self._service.log.line(
                "Endpoint '/get_model_info' is deprecated and will be removed in a future version. Please use '/model_info' instead."
            )
        body = {
            "model_path": self._path,
            "tokenizer_path": self._path,
            "is_generation": True,
            "weight_version": "default",
            "model_type": launch.model.name,
            "architectures": [launch.model.architecture],
        }
        connection.respond(200, _json(body))
        return 200

    def _models(self, connection: Connection, _request: Request) -> int:
        card = {"id": self._name, "object": "model", "created": int(time.time()), "owned_by": "sglang", "root": self._name}
        card["max_model_len"] = self._service.launch.model.max_context
        connection.respond(200, _json({"object": "list", "data": [card]}))
        return 200

    def _loads(self, connection: Connection, _request: Request) -> int:
        scheduler = self._service.scheduler
        load = {
            "dp_rank": 0,
            "num_running_reqs": len(scheduler.running),
            "num_waiting_reqs": len(scheduler.waiting),
            "num_used_tokens": scheduler.used_tokens,
            "max_total_num_tokens": scheduler.limits.pool_tokens,
            "max_running_requests": scheduler.limits.max_running,
        }
        connection.respond(200, _json({"version": self._service.launch.version_text, "loads": [load]}))
        return 200

    def _flush(self, connection: Connection, _request: Request) -> int:
        service = self._service
        if service.frozen:
            return 0
        if service.busy or not service.scheduler.idle:
            running, queued = len(service.scheduler.running), len(service.scheduler.waiting)
            service.log.line(f"Cache not flushed because there are pending requests. #queue-req: {queued}, #running-req: {running}", 0)
            connection.respond(400, b"Flush cache failed.\n", "text/plain; charset=utf-8")
            return 400
        service.scheduler.cache.clear()
        service.log.line("Cache flushed successfully!", 0)
        text = (
            b"Cache flushed.\nPlease check backend logs for more details. "
            b"(When there are running or waiting requests, the operation will not be performed.)\n"
        )
        connection.respond(200, text, "text/plain; charset=utf-8")
        return 200

    def _abort(self, connection: Connection, request: Request) -> int:
        body = json.loads(request.body or b"{}")
        service = self._service
        wanted = list(service.jobs) if body.get("abort_all") else [rid for rid in service.jobs if rid.startswith(body.get("rid") or "\0")]
        for rid in wanted:
            service.abort(rid)
        connection.respond(200)
        return 200

    def _metrics(self, connection: Connection, _request: Request) -> int:
        service = self._service
        if not service.launch.args.get("enable_metrics"):
            connection.respond(404, b'{"detail":"Not Found"}')
            return 404
        text = metrics_text(service.launch, service.scheduler, service.measures, self._name)
        connection.respond(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")
        return 200

    def _start_profile(self, connection: Connection, request: Request) -> int:
        folder = self._service.recorder.start(json.loads(request.body or b"{}"))
        self._service.log.line(f"Profiling starts. Traces will be saved to: {folder}", 0)
        connection.respond(200, b"Start profiling.\n", "text/plain; charset=utf-8")
        return 200

    def _stop_profile(self, connection: Connection, _request: Request) -> int:
        service = self._service
        service.log.line("Stop profiling...", 0)
        for path in service.recorder.stop():
            service.log.line(f"Profiling done. Traces are saved to: {path.parent}", 0)
        connection.respond(200, b"Stop profiling. This will take some time.\n", "text/plain; charset=utf-8")
        return 200

    def _generate(self, connection: Connection, request: Request) -> int:
        body = json.loads(request.body)
        ids, text = body.get("input_ids"), body.get("text")
        if ids is None and text is None:
            raise BadRequest("Either text, input_ids or input_embeds should be provided.")
        sampling = body.get("sampling_params") or {}
        if isinstance(text, list) or (isinstance(ids, list) and ids and isinstance(ids[0], list)):
            return self._batch(connection, body, text if ids is None else ids, sampling)
        prompt = self._prompt(text if ids is None else ids)
        wanted = self._wanted(prompt, sampling, sampling.get("max_new_tokens", 128), body)
        stream = bool(body.get("stream"))
        self._submit(GenerateStream(*self._base(connection, wanted)) if stream else GenerateWhole(*self._base(connection, wanted)))
        return 200

    def _batch(self, connection: Connection, body: dict[str, Any], prompts: list[Any], sampling: Any) -> int:
        """Several prompts in one request, without stream."""
        if body.get("stream"):
            raise BadRequest("The simulated engine streams one prompt a request.")
        answers: list[dict[str, Any] | None] = [None] * len(prompts)
        sinks = []
        for place, each in enumerate(prompts):
            own = sampling[place] if isinstance(sampling, list) else sampling
            sink = GenerateWhole(
                *self._base(connection, self._wanted(self._prompt(each), own, own.get("max_new_tokens", 128), {**body, "rid": None}))
            )

            def collect(answer: dict[str, Any], place: int = place) -> None:
                answers[place] = answer
                if all(one is not None for one in answers):
                    connection.respond(200, _json(answers))

            sink.collect = collect
            sinks.append(sink)
        for sink in sinks:
            self._submit(sink)
        return 200

    def _completions(self, connection: Connection, request: Request) -> int:
        body = json.loads(request.body)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompt = prompt[0]
        return self._openai(connection, body, self._prompt(prompt), body.get("max_tokens") or 16, chat=False)

    def _chat(self, connection: Connection, request: Request) -> int:
        body = json.loads(request.body)
        text = "".join(str(message.get("content") or "") for message in body.get("messages") or [])
        length = body.get("max_completion_tokens") or body.get("max_tokens") or 512
        return self._openai(connection, body, self._prompt(text), length, chat=True)

    def _openai(self, connection: Connection, body: dict[str, Any], prompt: list[int], length: int, chat: bool) -> int:
        options = body.get("stream_options") or {}
        wanted = self._wanted(
            prompt, {"min_new_tokens": body.get("min_tokens"), **body}, length, {**body, "return_logprob": False}, options
        )
        base = self._base(connection, wanted)
        self._submit(OpenAiStream(*base, chat=chat) if body.get("stream") else OpenAiWhole(*base, chat=chat))
        return 200

    def _prompt(self, given: Any) -> list[int]:
        if isinstance(given, str):
            return self._service.outputs.tokenize(given)
        if isinstance(given, list) and given:
            return given
        raise BadRequest("The input is empty; text or token ids are needed.")

    def _wanted(
        self, ids: list[int], sampling: dict[str, Any], length: int, body: dict[str, Any], options: dict[str, Any] | None = None
    ) -> Wanted:
        service = self._service
        limit = service.launch.model.max_context
        if len(ids) + length > limit:
            raise BadRequest(
                f"Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a total of {len(ids) + length} "
                f"tokens: {len(ids)} tokens from the input messages and {length} tokens for the completion. Please reduce the number of tokens in "
                "the input messages or the completion to fit within the limit."
            )
        if not service.scheduler.fits(len(ids)):
            raise BadRequest(
                f"Input length ({len(ids)} tokens) exceeds the maximum allowed length ({service.launch.limits.pool_tokens} tokens)."
            )
        stop_at = None
        if not sampling.get("ignore_eos"):
            natural = max(service.outputs.stop_after(service.outputs.state(ids)), int(sampling.get("min_new_tokens") or 0))
            stop_at = natural if natural < length else None
        return Wanted(
            ids=ids,
            output=int(length),
            stop_at=stop_at,
            rid=str(body.get("rid") or ""),
            logprobs=bool(body.get("return_logprob")),
            logprob_start=int(body.get("logprob_start_len", -1) if body.get("logprob_start_len") is not None else -1),
            include_usage=bool((options or {}).get("include_usage")),
            continuous_usage=bool((options or {}).get("continuous_usage_stats")),
        )

    def _base(self, connection: Connection, wanted: Wanted) -> tuple[Any, ...]:
        return (connection, wanted, self._style, self._service.outputs, self._service.finished)

    def _submit(self, sink: Base) -> None:
        wanted = sink.wanted
        job = Job(wanted.ids, min(wanted.output, wanted.stop_at or wanted.output), sink)
        self._service.submit(job, sink)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
