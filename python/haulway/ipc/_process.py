"""Iterates over the items that a worker process makes."""

# Design: a worker is a process with a channel and an arena. The parent's iterator
# receives messages, makes items from them without a copy, and requests the next
# pass by number, so that messages of an older pass can be recognised. Failures
# are sent as text with their traceback. A worker that is silent for too long,
# or dies, is reported with what is known: its exit code or signal.
#
# multiprocessing.Queue was left out: it copies every item through a pipe, and
# pickles it in a thread that competes for the GIL. A worker is ended in steps
# (request, wait, terminate, kill), since it may hold devices that must be
# closed.


from __future__ import annotations

import contextlib
import functools
import os
import pickle
import subprocess
import threading
import time
import weakref
from multiprocessing.util import Finalize

from .. import _haulway
from .._describing import counted, described
from .._errors import (
    ArgumentTypeError,
    Error,
    InvalidArgumentError,
    NotFoundError,
)
from .._importing import imported, importing
from ._arguments import (
    context,
    environment,
    flag,
    function,
    functions,
    integer,
    one_arena,
    seconds,
    words,
    wrong_type,
)
from ._backends import PlainTransport, _Arena
from ._errors import WorkerDied, WorkerError, WorkerTimeout
from ._handlers import user_handlers
from ._offload import discard, restore
from ._worker import FAILED, FINISHED, ITEM, READY, REFUSED, Descriptor, serve

# Bytes in transit of small items and of pieces of large pickles.
_RING_BYTES = 1 << 20
_UNLIMITED = 1 << 30
_SLICE_S = 0.05


# Arenas of other packages that belong to an iteration.
_taken = []
_taken_lock = threading.Lock()


def _pick_arena(buffer, arena):
    name, arena = one_arena(buffer, arena)
    if arena is None:
        return PlainTransport()
    if isinstance(arena, _Arena):
        arena._take()
        return arena
    missing = [
        name
        for name in ("open_writer", "open_reader", "close", "unlink")
        if not callable(getattr(arena, name, None))
    ]
    if missing:
        raise wrong_type(name, arena, f"an arena, with {', '.join(missing)}()")
    with _taken_lock:
        if any(ref() is arena for ref in _taken):
            raise InvalidArgumentError(
                "this arena belongs to another iteration: make one for each",
                "kInvalidArgument",
            )
        # Without weak references, reuse of such an arena cannot be detected.
        with contextlib.suppress(TypeError):
            _taken.append(weakref.ref(arena, _taken.remove))
    return arena


def items_of(buffer_size):
    """Returns the number of items that may be in flight for a `buffer_size`."""
    items = integer("buffer_size", buffer_size)
    return min(items, _UNLIMITED) if items > 0 else _UNLIMITED


def check_worker(fn, buffer_size, initializer, mp_context, timeout):
    """Raises for wrong arguments before a worker and its arena are made."""
    function("fn", fn)
    items_of(buffer_size)
    functions("initializer", initializer)
    context("mp_context", mp_context)
    seconds("timeout", timeout)


def _join(processes, seconds):
    """Waits up to `seconds` for all processes together."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0))


def _end(processes, patience):
    """Waits for the processes and makes sure that they end.

    patience: seconds that they may take to end by themselves, and again after
    SIGTERM. A stopped process reacts to neither.
    """

    def running():
        return [process for process in processes if process.exitcode is None]

    try:
        _join(processes, patience)
        for process in running():
            process.terminate()
        _join(running(), patience)
    finally:
        # Also after Ctrl-C: multiprocessing would wait for them at exit.
        for process in running():
            process.kill()
        _join(running(), 10)


_PATIENCE_S = 3
# Patience after Ctrl-C in this process.
_LITTLE_PATIENCE_S = 0.4
# Patience with a worker that has already timed out.
_NO_PATIENCE_S = 0.1


def _patience_after(error):
    if isinstance(error, KeyboardInterrupt):
        return _LITTLE_PATIENCE_S
    return _PATIENCE_S


def _ask_to_end(receiver, arena):
    for end in receiver:
        end.abort()
    shutdown = getattr(arena, "shutdown_arena", None)
    if shutdown is not None:
        shutdown()


def _shut_down(receiver, process, arena, pidfd, patience):
    """Ends the worker and releases the arena; also runs at exit.

    patience: a list, whose least number is that of _end().
    """
    try:
        _ask_to_end(receiver, arena)
    finally:
        try:
            if process.pid is not None:
                _end([process], min(patience))
        finally:
            if pidfd:
                os.close(pidfd.pop())
            if arena is not None:
                try:
                    arena.close()
                finally:
                    arena.unlink()


def _raise_failure(payload, what, pickle_free=False):
    if pickle_free:
        text = payload.decode(errors="replace")
        lines = text.splitlines()
        error = WorkerError(f"{what}: {lines[-1] if lines else ''}")
        error.remote_traceback = text
        raise error
    try:
        summary, text, pickled = pickle.loads(payload)
    except Exception as error:
        raise WorkerError(f"{what}, and does not say why") from error
    cause = None
    if pickled is not None:
        try:
            cause = pickle.loads(pickled)
        except Exception:
            cause = None
    if not isinstance(cause, BaseException):
        cause = None  # Its class pickles it as something else.
    error = WorkerError(f"{what}: {summary}")
    error.remote_traceback = text
    if hasattr(error, "add_note"):
        error.add_note(f"in the worker:\n{text}")
    raise error from cause


def make_receiver(channel, pidfd, arena, is_native, consumer=0,
                  pickle_free=False):
    native = arena if is_native else None
    return _haulway.ItemReceiver(
        channel, pidfd, native and native._open(),
        bool(native and native._copies), bool(native and native._read_only),
        bool(native and native._bytes_as_views),
        arena is not None and not is_native, consumer, pickle_free,
    )


@contextlib.contextmanager
def _naming_what_cannot_be_sent(**arguments):
    """Returns a `with` block for starting a process. If an argument cannot be
    pickled for the process, names the argument and says what to do."""
    failures = (AttributeError, TypeError, pickle.PicklingError)
    try:
        yield
    except failures as error:
        for name, value in arguments.items():
            try:
                pickle.dumps(value)
            except failures as same:
                if str(same) == str(error):
                    raise ArgumentTypeError(
                        f"{name} cannot be sent to a new process: {error}; "
                        "expected a function at the top level of a module, or "
                        "mp_context='fork'",
                        "kInvalidArgument",
                    ) from error
        raise


def _watch(pid):
    """Returns a descriptor that can be read once the process has ended."""
    try:
        return _haulway.open_pidfd(pid)
    except NotFoundError:
        # It has ended, and was not a child of this process, as a zombie is.
        ended, writer = os.pipe()
        os.close(writer)
        return ended


class SubprocessIterable:
    """The result of iterate_in_subprocess: can be iterated any number of
    times.

    A pass that is abandoned ends when the next one begins. Only the newest
    iterator is valid; older ones raise. The worker ends with close(), at the
    end of a `with` statement, or when nothing refers to this object any more.
    """

    def __init__(self, fn, buffer_size, initializer, mp_context, timeout,
                 daemon, arena, pickle_free=False, channels=()):
        if pickle_free and not isinstance(arena, _Arena):
            raise wrong_type(
                "arena", arena, "an arena of Haulway with pickle_free=True"
            )
        self._pickle_free = pickle_free
        self._timeout = seconds("timeout", timeout)
        self._native = isinstance(arena, _Arena)
        self._arena = arena
        self._reader = None
        self._epoch = 0
        self._owner = os.getpid()
        self._busy = threading.Lock()
        channel = _haulway.Channel.create(_RING_BYTES, items_of(buffer_size))
        parent = Descriptor(_haulway.open_pidfd(os.getpid()))
        sent = [parent]
        try:
            for end in (channel, *channels):
                sent.append(Descriptor(os.dup(end.fd)))
            self._process = self._make_process(
                fn, initializer, mp_context, daemon, sent[1:], parent
            )
            receiver, pidfd = list(channels), []
            self._receivers = receiver
            self._patience = [_PATIENCE_S]
            self._finalizer = Finalize(
                self, _shut_down,
                (receiver, self._process, arena, pidfd, self._patience),
                exitpriority=10,
            )
            try:
                with _naming_what_cannot_be_sent(fn=fn, initializer=initializer):
                    self._process.start()
            except BaseException:
                self._finalizer()
                raise
        finally:
            for descriptor in sent:
                os.close(descriptor.fd)
        try:
            self._pidfd = _watch(self._process.pid)
            pidfd.append(self._pidfd)
            self._receiver = self._make_receiver(channel, self._pidfd)
            receiver.append(self._receiver)
            self._await_ready()
        except BaseException as error:
            self._shutdown(error)
            raise

    def _make_process(self, fn, initializer, mp_context, daemon, channels,
                      parent):
        return context("mp_context", mp_context).Process(
            target=serve,
            args=(
                channels[0], parent, self._arena, self._native, fn,
                functions("initializer", initializer), user_handlers(),
                min(2, _haulway.usable_cpus()), self._pickle_free, channels[1:],
            ),
            daemon=daemon,
        )

    def _make_receiver(self, channel, pidfd):
        return make_receiver(channel, pidfd, self._arena, self._native,
                             pickle_free=self._pickle_free)

    def _await_ready(self):
        signal = self._receive(0)
        if signal.kind == REFUSED:
            self._fail(signal, "the worker could not be set up")
        if signal.kind != READY:
            raise WorkerError(f"unexpected message of kind {signal.kind}")

    def _fail(self, signal, what):
        _raise_failure(signal.payload, what, self._pickle_free)

    def _receive(self, epoch):
        try:
            return self._receiver.receive(epoch, self._timeout)
        except Error as error:
            self._explain(error)

    def _explain(self, error):
        """Raises the exception for an error of receive()."""
        if error.code == "kTimeout":
            self._end_silent()
        if error.code == "kCancelled":
            raise WorkerError("the worker process is shut down") from None
        if error.code != "kUnavailable":
            raise error
        self._process.join(1)
        code = self._process.exitcode
        raise WorkerDied(
            f"the worker process died: exit code {code}", exitcode=code
        ) from None

    def _end_silent(self):
        self._patience.append(_NO_PATIENCE_S)
        raise WorkerTimeout(
            f"the worker was silent for {self._timeout} s"
        ) from None

    def _end_if_silent(self, seconds):
        """Ends a worker that has been silent for so long, if that is too long.
        """
        if seconds > self._timeout:
            try:
                self._end_silent()
            finally:
                self._shutdown()

    def _has_arrived(self, epoch):
        """Returns whether next() of this pass would return, or raise, without
        waiting."""
        if self._epoch != epoch or not self._busy.acquire(False):
            return True  # next() says why.
        try:
            return self._receiver.has_arrived(epoch)
        finally:
            self._busy.release()

    def _refuse(self, epoch):
        if self._epoch != epoch:
            raise WorkerError(
                "this iterator is over: another one was begun since"
            )
        raise WorkerError("another thread is waiting for the next item")

    @property
    def _is_open(self):
        return self._owner == os.getpid() and self._finalizer.still_active()

    def _shutdown(self, error=None):
        if self._is_open:
            self._patience.append(_patience_after(error))
            self._finalizer()

    def close(self):
        """Ends the worker. Views of items stay valid."""
        self._shutdown()

    def __repr__(self):
        pid = self._process.pid
        is_over = not self._finalizer.still_active()
        return described(self, "closed" if is_over else f"worker {pid}")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._shutdown(error[1])

    def __iter__(self):
        if self._owner != os.getpid():
            raise WorkerError(
                f"this iterable belongs to process {self._owner}: a process "
                "that was forked has to make one of its own"
            )
        if not self._finalizer.still_active():
            raise WorkerError("the worker process is shut down")
        if self._arena is not None and not self._native:
            if self._reader is None:
                self._reader = self._arena.open_reader()
        self._epoch = self._receiver.start_pass()
        if self._reader is None:
            return self._items(self._epoch)
        return self._restored(self._epoch)

    async def __aiter__(self):
        """A pass for asyncio: other tasks run while the worker works."""
        asyncio = imported("asyncio")
        iterator, epoch = iter(self), self._epoch
        loop = asyncio.get_running_loop()
        while True:
            began = time.monotonic()
            # Wait in slices: a cancelled task leaves a thread behind for that
            # long.
            while not self._has_arrived(epoch):
                self._end_if_silent(time.monotonic() - began)
                await loop.run_in_executor(
                    None, _haulway.wait_for_any, [self._receiver], _SLICE_S
                )
            try:
                held = [next(iterator)]
            except StopIteration:
                return
            yield held.pop()  # Only the caller holds the item.

    def _next(self, epoch):
        if self._epoch != epoch or not self._busy.acquire(False):
            self._refuse(epoch)
        try:
            return self._receive(epoch)
        finally:
            self._busy.release()

    def _items(self, epoch):
        """Yields the items of a pass through one of Haulway's arenas, or
        none."""
        signal = _haulway.Signal
        receive, lock, timeout = self._receiver.receive, self._busy, self._timeout
        try:
            while True:
                if self._epoch != epoch or not lock.acquire(False):
                    self._refuse(epoch)
                try:
                    item = receive(epoch, timeout)
                except Error as error:
                    self._explain(error)
                finally:
                    lock.release()
                if type(item) is signal:
                    if self._is_last(item, epoch):
                        return
                else:
                    held = [item]
                    item = None
                    yield held.pop()  # Only the caller holds the item.
        except GeneratorExit:
            raise
        except BaseException as error:
            if self._epoch == epoch:
                self._shutdown(error)
            raise

    def _restored(self, epoch):
        """Yields the items of a pass through another package's arena."""
        self._reader.reset()
        try:
            while True:
                signal = self._next(epoch)
                if signal.kind != ITEM:
                    if self._is_last(signal, epoch):
                        return
                elif signal.epoch != epoch:
                    discard(signal.payload, self._reader)
                else:
                    yield restore(signal.payload, self._reader)
        except GeneratorExit:
            raise
        except BaseException as error:
            if self._epoch == epoch:
                self._shutdown(error)
            raise

    def _is_last(self, signal, epoch):
        if signal.kind == FAILED:
            self._fail(signal, "the worker failed")
        return signal.kind == FINISHED and signal.epoch == epoch


def iterate_in_subprocess(fn, *, buffer_size=3, initializer=None,
                          mp_context=None, timeout=None, daemon=False,
                          buffer=None, arena=None, pickle_free=False):
    """Runs `fn` in a worker process; returns an iterable over its items.

    fn: called once in the worker; returns an iterable, which is iterated anew
        in each pass.
    buffer_size: how many items the worker may be ahead; 0: any number.
    initializer: a function, or several, called in the worker before fn.
    mp_context: a context of multiprocessing, or the name of a start method.
    timeout: seconds that the worker may be silent; None: no limit. A worker
        that is silent for longer is killed.
    daemon: whether the worker is a daemon.
    arena, buffer: shared memory for the large parts of items: any object with
        the structure of ArenaProtocol. It belongs to the iterable from then
        on. None pickles whole items.
    pickle_free: items are tensors, numbers, text and bytes, in lists, tuples
        and dicts. They are sent without a pickle, and no pickle that arrives
        is read, so a hostile worker cannot run code here.

    A second pass is an error if `fn` returned an iterator that the first pass
    exhausted, such as a generator: return something that can be iterated
    again.

    Raises WorkerError, a RuntimeError, if the worker fails, and WorkerDied
    with its exit code if it dies.

    Raises ArgumentTypeError and InvalidArgumentError before a worker is
    started. The iterable is for one thread at a time.
    """
    check_worker(fn, buffer_size, initializer, mp_context, timeout)
    flag("daemon", daemon)
    flag("pickle_free", pickle_free)
    arena = _pick_arena(buffer, arena)
    return SubprocessIterable(
        fn, buffer_size, initializer, mp_context, timeout, daemon, arena,
        pickle_free,
    )


class _Program:
    """A program with the interface of a multiprocessing.Process."""

    def __init__(self, command, environment, descriptors):
        self._command = command
        self._environment = environment
        self._descriptors = descriptors
        self._popen = None

    def start(self):
        self._popen = subprocess.Popen(
            self._command, env=self._environment, pass_fds=self._descriptors
        )

    @property
    def pid(self):
        return None if self._popen is None else self._popen.pid

    @property
    def exitcode(self):
        return None if self._popen is None else self._popen.poll()

    def is_alive(self):
        return self.exitcode is None

    def join(self, timeout=None):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout)

    def terminate(self):
        self._popen.terminate()

    def kill(self):
        self._popen.kill()


class ProgramIterable(SubprocessIterable):
    """Implements the result of iterate_in_program."""

    def _make_process(self, fn, initializer, mp_context, daemon, channels,
                      parent):
        link = {"channel": channels[0].fd, "parent": parent.fd,
                "arena": self._arena._open().fd}
        text = ",".join(f"{name}={fd}" for name, fd in link.items())
        command, environment = fn
        return _Program([*command, text], environment, list(link.values()))


def iterate_in_program(command, *, buffer_size=3, timeout=None, buffer=None,
                       arena=None, env=None):
    """iterate_in_subprocess with a program in any language as the worker.

    command: a list of the program's path and its arguments. One more argument
        is appended: the link with which the program finds its parent. The
        program calls haulway::ServeParent in C++ or serve_program in Python.
    env: its environment, a dict; None: that of this process.
    buffer_size, timeout, buffer, arena: as for iterate_in_subprocess.

    Items are sent without a pickle. Raises OSError if the program cannot be
    started, WorkerError if it fails, and WorkerDied if it dies.
    """
    command = words(
        "command", command, "a list of a program's path and its arguments"
    )
    return ProgramIterable(
        (command, environment("env", env)), buffer_size, None, None, timeout, False,
        _pick_arena(buffer, arena), True,
    )


class _Rebuilt:
    """Builds a new pipeline for every pass."""

    def __init__(self, factory):
        self._factory = factory

    def __iter__(self):
        pipeline = self._factory()
        manager = getattr(pipeline, "auto_stop", None)
        if manager is not None:
            context = manager()
        elif hasattr(pipeline, "__enter__"):
            context = pipeline
        else:
            context = contextlib.nullcontext()
        with context as entered:
            yield from pipeline if entered is None else (
                entered if hasattr(entered, "__iter__") else pipeline
            )


def run_in_subprocess(factory, **options):
    """iterate_in_subprocess for a pipeline that is built for every pass.

    factory: makes the pipeline: any iterable. If it has `auto_stop()`, or is a
        context manager, it is iterated within that.
    options: the options of iterate_in_subprocess.

    Raises what iterate_in_subprocess raises.
    """
    factory = function("factory", factory)
    return iterate_in_subprocess(functools.partial(_Rebuilt, factory), **options)


class _Several:
    """Iterates over several workers; ends them as SubprocessIterable does."""

    def __init__(self, sources, ordered):
        self._sources = sources
        self._ordered = ordered

    def __repr__(self):
        return described(self, counted(len(self._sources), "worker"))

    def close(self):
        self._shutdown(None)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._shutdown(error[1])

    def _shutdown(self, error):
        # All workers end at once: those that hang take the time of one.
        sources = [source for source in self._sources if source._is_open]
        with contextlib.ExitStack() as stack:
            for source in sources:
                stack.callback(source._shutdown, error)
            for source in sources:
                _ask_to_end(source._receivers, source._arena)
            _end([source._process for source in sources],
                 _patience_after(error))

    def __iter__(self):
        iterators = [iter(source) for source in self._sources]
        if self._ordered:
            return self._in_turn(iterators)
        epochs = [source._epoch for source in self._sources]
        return self._as_completed([*zip(iterators, self._sources, epochs)])

    def _in_turn(self, iterators):
        while iterators:
            for iterator in list(iterators):
                try:
                    held = [next(iterator)]
                except StopIteration:
                    iterators.remove(iterator)
                    continue
                yield held.pop()

    def _as_completed(self, pending):
        silent = dict.fromkeys(self._sources, 0.0)  # Seconds, while waited for.
        while pending:
            ready = [p for p in pending if p[1]._has_arrived(p[2])]
            if not ready:
                began = time.monotonic()
                _haulway.wait_for_any(
                    [source._receiver for _, source, _ in pending], _SLICE_S
                )
                waited = time.monotonic() - began
                for _, source, _ in pending:
                    silent[source] += waited
                    source._end_if_silent(silent[source])
            for each in ready:
                silent[each[1]] = 0.0
                try:
                    held = [next(each[0])]
                except StopIteration:
                    pending.remove(each)
                    continue
                yield held.pop()


def iterate_in_subprocesses(fns, *, ordered=True, arena=None, arenas=None,
                            **options):
    """iterate_in_subprocess with one worker for each function in `fns`.

    Items come from each worker in turn or, if `ordered` is False, as they are
    made. `arena`, or `arenas`, is a function without arguments that makes the
    arena of a worker.

    fns: a function for each worker.
    options: the options of iterate_in_subprocess, except `buffer`.

    Raises what iterate_in_subprocess raises; then no worker is left.
    """
    if arena is not None and arenas is not None:
        raise InvalidArgumentError(
            "arena and arenas are the same argument: give one",
            "kInvalidArgument",
        )
    make = arenas if arena is None else arena
    if make is not None and not callable(make):
        raise wrong_type(
            "arenas" if arena is None else "arena", make,
            "a function that makes an arena, as each worker needs an arena of "
            "its own",
        )
    sources = []
    try:
        for fn in fns:
            made = None if make is None else make()
            sources.append(iterate_in_subprocess(fn, arena=made, **options))
    except BaseException:
        _Several(sources, ordered).close()
        raise
    return _Several(sources, ordered)


def as_iterable_dataset(source):
    """Returns a torch IterableDataset over `source`, for a DataLoader without
    workers. Raises ImportError without torch.
    """
    with importing:
        from torch.utils.data import IterableDataset

    class SubprocessDataset(IterableDataset):
        def __iter__(self):
            return iter(source)

    return SubprocessDataset()
