"""The engine thread: obey commands, plan a step, launch it, publish the tokens of the one before."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.committed import CommittedStep
from engine.inbox import Abort, Command, Finish, ForgetPrefixes, Inbox, Stop, Submit
from engine.pacer import Pacer
from engine.plan import StepPlan
from engine.prompt_scores import PromptScores
from engine.record import StepEntry
from engine.record.step_log import WAITED_NS
from engine.recorder import Recorder, entry_of_plan
from engine.request import NO_TOKEN, FinishReason, StepOutput
from engine.runner.launch import Launch, Runner, StepResult
from engine.scheduler import Scheduler
from engine.sequence import Sequence

_IDLE_WAIT_S = 1.0  # an idle engine shows its heartbeat this often
_LOOK_S = 0.002  # so late may the end be seen of a step that takes less than was expected


@dataclass(slots=True)
class _InFlight:
    plan: StepPlan
    launch: Launch
    launched_ns: int
    entry: StepEntry | None  # only when a step log is kept


class EngineLoop:
    """One thread runs `run()`; `depth` steps are in flight before the oldest one's tokens are read.

    At depth 2 the host plans and launches step N+1 while the device computes step N, so planning, publishing
    and detokenizing cost the device no time. At depth 1 a token is published before the next step is planned.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        inbox: Inbox,
        recorder: Recorder,
        *,
        depth: int,
        check_invariants: bool = False,
    ) -> None:
        self.heartbeat_ns = time.monotonic_ns()
        self.on_step: list[Callable[[StepOutput], None]] = []
        self._scheduler = scheduler
        self._runner = runner
        self._inbox = inbox
        self._recorder = recorder
        self._depth = depth
        self._check_invariants = check_invariants
        budget = scheduler.chunk_budget
        self._pacer = Pacer(budget) if budget is not None and depth > 1 else None
        self._prompt_scores = PromptScores()
        self._in_flight: deque[_InFlight] = deque()
        self._ended_ns = 0  # when the last step ended, if that was seen
        self._stopped = False

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def run(self) -> None:
        """Returns after a `Stop` command; anything raised here is the end of the engine."""
        while not self._stopped:
            self.turn(wait_s=_IDLE_WAIT_S)
        self._abort_all()

    def turn(self, wait_s: float = 0.0) -> None:
        """One pass. Waits up to `wait_s` for a command when there is nothing to compute."""
        self.heartbeat_ns = time.monotonic_ns()
        idle = not self._in_flight and not self._scheduler.has_work
        self._obey_next(wait_s if idle else 0.0)
        if self._in_flight and self._pacer is not None:
            self._await_planning(self._in_flight[-1], self._pacer)
        scheduled_at_ns = time.monotonic_ns()
        plan = self._scheduler.schedule()
        if plan is not None:
            self._launch(plan, scheduled_at_ns)
        if self._in_flight and (plan is None or len(self._in_flight) >= self._depth):
            self._publish(self._in_flight.popleft())
        if self._check_invariants:
            self._scheduler.check()

    def _await_planning(self, newest: _InFlight, pacer: Pacer) -> None:
        """Until the next step has to be planned so that the device does not wait for it.

        That is guessed from the steps before; one that ends earlier must not wait for its tokens to be read.
        """
        begun_ns = max(newest.launched_ns, self._ended_ns)
        slack_s = pacer.slack_s(len(newest.plan.decodes), newest.plan.num_prompt_tokens)
        until_ns = begun_ns + int(slack_s * 1e9)
        while not (self._stopped or newest.launch.has_ended):
            wait_ns = until_ns - time.monotonic_ns()
            if wait_ns <= 0:
                return
            self._obey_next(min(wait_ns / 1e9, _LOOK_S))

    def _obey_next(self, wait_s: float) -> None:
        """Obey the next commands of the inbox, if it is empty what comes within `wait_s`."""
        for command in self._inbox.take(wait_s):
            self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case Submit(request):
                self._recorder.queued(request, time.monotonic_ns())
                self._scheduler.add(request)
            case Abort(request_id):
                for sequence in self._scheduler.abort(request_id):
                    self._ended(sequence, FinishReason.ABORT)
            case Finish(sequence_id, reason):
                finished = self._scheduler.finish(sequence_id, reason)
                if finished is not None:
                    self._ended(finished, reason)
            case ForgetPrefixes(num_forgotten):
                if num_forgotten.set_running_or_notify_cancel():  # who asked may have given up
                    num_forgotten.set_result(self._scheduler.block_manager.forget_prefixes())
            case Stop():
                self._stopped = True

    def _launch(self, plan: StepPlan, scheduled_at_ns: int) -> None:
        planned_ns = time.monotonic_ns()
        self._recorder.planned(plan)
        launch = self._runner.launch(plan)
        launched_ns = time.monotonic_ns()
        if self._pacer is not None:
            self._pacer.observe((launched_ns - scheduled_at_ns) / 1e9)
        entry = self._step_entry(plan, scheduled_at_ns)
        if entry is not None:
            entry.schedule_ns = planned_ns - scheduled_at_ns
            entry.launch_ns = launched_ns - planned_ns
        if launch.awaits_tokens:
            while self._in_flight:
                self._publish(self._in_flight.popleft())
            launch.resume()
        self._in_flight.append(_InFlight(plan, launch, planned_ns, entry))

    def _publish(self, step: _InFlight) -> None:
        collected_at_ns = time.monotonic_ns()
        result = step.launch.collect()
        now_ns = time.monotonic_ns()
        self._observe(step.plan, result.device_ns)
        waited = now_ns - collected_at_ns > WAITED_NS  # else the step had ended, nobody knows when
        self._ended_ns = now_ns if waited else 0
        self._prompt_scores.add(result.prompt_logprobs, step.plan)
        given_up = [self._scheduler.finish(sequence_id, FinishReason.ERROR) for sequence_id in result.stuck]
        committed = self._scheduler.commit(step.plan, result.token_ids)
        if result.stuck:
            committed = committed.followed_by(CommittedStep.of_failed(filter(None, given_up)))
        self._recorder.generated(committed, now_ns)
        output = StepOutput(
            step.plan.step, now_ns, committed.sequence_ids, committed.token_ids, committed.finish_reasons
        )
        self._add_logprobs(output, result, committed)
        for sequence, reason in committed.ended:
            self._ended(sequence, reason)
        self._recorder.stepped(step.plan, committed.num_tokens)
        self._tell(output)
        if step.entry is not None:
            step.entry.num_generated = committed.num_tokens
            step.entry.collected_at_ns = collected_at_ns
            step.entry.collect_ns = now_ns - collected_at_ns
            step.entry.commit_ns = time.monotonic_ns() - now_ns
            step.entry.device_ns = result.device_ns
        self._recorder.timed(step.entry)

    def _add_logprobs(self, output: StepOutput, result: StepResult, committed: CommittedStep) -> None:
        """Of those that got a token, and the prompts' of those whose first it is."""
        if result.logprobs:
            ids = [sequence_id for sequence_id in output.sequence_ids if sequence_id in result.logprobs]
            output.logprobs = {sequence_id: result.logprobs[sequence_id] for sequence_id in ids}
        for sequence_id in output.sequence_ids[committed.num_decodes :]:
            scores = self._prompt_scores.take(sequence_id)
            if scores is not None:
                output.prompt_logprobs[sequence_id] = scores

    def _observe(self, plan: StepPlan, device_ns: int) -> None:
        if self._scheduler.chunk_budget is not None and device_ns:
            self._scheduler.chunk_budget.observe(len(plan.decodes), plan.num_prompt_tokens, device_ns / 1e9)

    def _ended(self, sequence: Sequence, reason: FinishReason) -> None:
        self._prompt_scores.drop(sequence.sequence_id)
        self._recorder.ended(sequence, reason, time.monotonic_ns())

    def _step_entry(self, plan: StepPlan, scheduled_at_ns: int) -> StepEntry | None:
        if self._recorder.step_log is None:
            return None
        return entry_of_plan(
            plan,
            scheduled_at_ns=scheduled_at_ns,
            num_waiting=self._scheduler.num_waiting,
            num_running=self._scheduler.num_running,
            num_blocks_used=self._scheduler.block_manager.num_used,
        )

    def _abort_all(self) -> None:
        """End what is left, and tell the front end, whose streams are still open."""
        output = StepOutput(-1, time.monotonic_ns())
        for request_id in self._scheduler.request_ids:
            for sequence in self._scheduler.abort(request_id):
                output.add(sequence.sequence_id, NO_TOKEN, FinishReason.ABORT)
                self._ended(sequence, FinishReason.ABORT)
        self._tell(output)

    def _tell(self, output: StepOutput) -> None:
        if output.sequence_ids:
            for publish in self.on_step:
                publish(output)
