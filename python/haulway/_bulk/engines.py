"""The engines, which run tasks.

An engine has `jobs`, the number of tasks that run at once; `threads`, how many
a task may have; `shares_deaths`, whether a worker that dies ends tasks that it
has not begun, so that an input tried again must be the only task;
submit(ticket, task); next(tell), which waits until any task ends and returns its
ticket with its records, or with the WorkerKilled or the other exception that
ended it; and close().
"""

from __future__ import annotations

import queue
from concurrent.futures import BrokenExecutor, Executor

from .. import _haulway
from .._errors import ArgumentTypeError, InvalidArgumentError
from .._host import import_host
from .._importing import imported
from .._options import number
from .local import LocalEngine, WorkerKilled
from .verbs import run_task

NAMES = ("local", "ray", "dask")


def engine_of(engine, jobs=None):
    """Returns the engine for a name or an executor.

    jobs: tasks that run at once; None: one for each processor of the engine.
    """
    if jobs is not None and number("jobs", jobs, 100_000) == 0:
        raise InvalidArgumentError(
            "jobs: expected a number of 1 or more, found 0", "kInvalidArgument"
        )
    if isinstance(engine, Executor):
        return FutureEngine(engine, jobs or _workers_of(engine))
    if engine == "local":
        return LocalEngine(jobs or _haulway.usable_cpus())
    if engine == "ray":
        return RayEngine(jobs)
    if engine == "dask":
        return DaskEngine(jobs)
    if isinstance(engine, str):
        raise InvalidArgumentError(
            f"engine: expected {', '.join(NAMES)} or an executor, found "
            f"{engine!r}", "kInvalidArgument",
        )
    raise ArgumentTypeError(
        f"engine is {type(engine).__name__}: expected {', '.join(NAMES)}, or a "
        "concurrent.futures.Executor", "kInvalidArgument",
    )


def _workers_of(executor):
    found = getattr(executor, "_max_workers", None)
    return found if isinstance(found, int) and found > 0 else _haulway.usable_cpus()


class FutureEngine:
    """Runs tasks on a concurrent.futures.Executor, which stays open.

    killed: exceptions that mean that a worker process died.
    """

    killed = (BrokenExecutor,)
    threads = 1
    shares_deaths = True

    def __init__(self, executor, jobs):
        self.jobs = jobs
        self._executor = executor
        self._done = queue.SimpleQueue()
        self._futures = {}

    def _send(self, task):
        return self._executor.submit(run_task, task)

    def submit(self, ticket, task):
        try:
            future = self._send(task)
        except self.killed as error:  # The pool broke in an earlier task.
            self._done.put((ticket, _killed(error)))
            return
        self._futures[ticket] = future
        future.add_done_callback(lambda ended: self._done.put((ticket, ended)))

    def next(self, tell):
        ticket, ended = self._done.get()
        self._futures.pop(ticket, None)
        if isinstance(ended, WorkerKilled):
            return ticket, ended
        try:
            return ticket, ended.result()
        except self.killed as error:
            return ticket, _killed(error)
        except Exception as error:
            return ticket, error

    def close(self, kill=False):
        for future in list(self._futures.values()):
            future.cancel()


def _killed(error):
    """Returns the WorkerKilled for an engine's error, whose text may be
    long."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return WorkerKilled(f"worker process died: {(lines or ['?'])[0]}")


class RayEngine(FutureEngine):
    """Runs tasks on ray: on the cluster that this process is connected to, else
    on the cluster in RAY_ADDRESS, else on this machine."""

    shares_deaths = False

    def __init__(self, jobs):
        ray = import_host("ray", "engine 'ray'", "ray", "2.60.0")
        exceptions = import_host("ray.exceptions", "engine 'ray'", "ray", "2.60.0")
        self.killed = (
            exceptions.WorkerCrashedError, exceptions.OutOfMemoryError,
            exceptions.NodeDiedError,
        )
        self._ray = ray
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            ray.init(
                log_to_driver=False, configure_logging=False,
                include_dashboard=False,
            )
        self._run = ray.remote(run_task)
        # A task that requests more CPUs than any machine has would never start.
        found = [
            int(node["Resources"].get("CPU", 0)) for node in ray.nodes()
            if node["Alive"]
        ]
        self.threads = max([1, *found])
        super().__init__(None, jobs or sum(found) or 1)

    def _send(self, task):
        # The loop retries tasks, so that retries are the same with every
        # engine.
        run = self._run.options(num_cpus=task.threads, max_retries=0)
        return run.remote(task).future()

    def close(self, kill=False):
        super().close(kill)
        if self._is_ours:
            self._ray.shutdown()


class DaskEngine(FutureEngine):
    """Runs tasks on dask: with this process's client, else with a client of the
    scheduler in dask's configuration (DASK_SCHEDULER_ADDRESS), else on this
    machine."""

    def __init__(self, jobs):
        distributed = import_host(
            "distributed", "engine 'dask'", "distributed", "2026.8.0"
        )
        self.killed = (distributed.KilledWorker,)
        self._ours = None
        try:
            client = distributed.get_client()
        except ValueError:
            dask = imported("dask")
            if dask.config.get("scheduler-address", None):
                client = distributed.Client(set_as_default=False)
            else:
                # The loop retries tasks, as with ray.
                once = {"distributed.scheduler.allowed-failures": 0}
                with dask.config.set(once):
                    client = distributed.Client(
                        n_workers=jobs or _haulway.usable_cpus(), threads_per_worker=1,
                        dashboard_address=None, set_as_default=False,
                    )
            self._ours = client
        super().__init__(
            client.get_executor(),
            jobs or sum(client.nthreads().values()) or 1,
        )

    def close(self, kill=False):
        super().close(kill)
        if self._ours is not None:
            self._ours.close()
