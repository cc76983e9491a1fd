"""haulway.ipc.DataLoader in place of torch's."""

import inspect
import pickle
import subprocess
import sys

import pytest
import torch
import torch.utils.data
from torch.utils.data.dataloader import DataLoader as Theirs

import loader_data as data
from haulway import ipc
from haulway.ipc import DataLoader
from haulway.ipc._loader_iterator import ArenaIterator


@pytest.fixture
def installed():
    ipc.install()
    yield
    ipc.uninstall()


class Derived(Theirs):
    """A program's class that is derived from torch's."""


def test_it_is_a_loader_of_torchs():
    loader = DataLoader(data.Numbers(), num_workers=1)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert issubclass(DataLoader, torch.utils.data.DataLoader)
    assert DataLoader.__name__ == "DataLoader"
    assert not isinstance(Theirs(data.Numbers()), DataLoader)
    assert not issubclass(Theirs, DataLoader)


def test_its_signature_is_torchs_with_one_argument_more():
    theirs = list(inspect.signature(Theirs).parameters)
    assert list(inspect.signature(DataLoader).parameters) == [
        *theirs, "max_shared_bytes"]
    ours = inspect.signature(DataLoader.__init__).parameters
    for name, parameter in inspect.signature(Theirs.__init__).parameters.items():
        assert ours[name] == parameter


def test_its_attributes_are_torchs():
    loaders = [each(data.Numbers(), 3, num_workers=1)
               for each in (Theirs, DataLoader)]
    names = [set(vars(loader)) for loader in loaders]
    assert names[1] - names[0] == {"max_shared_bytes"}
    for name in "batch_size", "num_workers", "prefetch_factor", "timeout":
        assert getattr(loaders[0], name) == getattr(loaders[1], name)


def test_another_can_be_built_from_its_attributes():
    """Programs that replace the sampler rebuild a loader in this way."""
    loader = DataLoader(data.Numbers(), batch_size=4, num_workers=1,
                        max_shared_bytes=1 << 26)
    names = set(inspect.signature(type(loader).__init__).parameters)
    values = {name: value for name, value in vars(loader).items()
              if name in names and name not in ("batch_sampler", "sampler")}
    values["multiprocessing_context"] = loader.multiprocessing_context
    again = type(loader)(sampler=[3, 1], **values)
    assert again.max_shared_bytes == 1 << 26
    assert [int(i) for _, squares in again for i in squares] == [9, 1]


def test_classes_can_be_derived_from_it():
    class Mine(DataLoader[int]):
        def __iter__(self):
            return map(str, super().__iter__())

    assert list(Mine([1, 2], batch_size=None, num_workers=1)) == ["1", "2"]


def test_a_loader_can_be_pickled():
    loader = pickle.loads(pickle.dumps(DataLoader(data.Numbers(4), num_workers=1)))
    assert type(loader) is DataLoader and len(list(loader)) == 4


def test_without_workers_the_iterator_is_torchs():
    iterators = [iter(each(data.Numbers())) for each in (Theirs, DataLoader)]
    assert type(iterators[0]) is type(iterators[1])


def test_installed_under_every_name(installed):
    assert torch.utils.data.DataLoader is DataLoader
    assert torch.utils.data.dataloader.DataLoader is DataLoader
    ipc.install()
    loader = torch.utils.data.DataLoader(data.Numbers(4), num_workers=1)
    assert isinstance(iter(loader), ArenaIterator)


def test_loaders_of_names_taken_before_are_ours_too(installed):
    for each in Theirs, Derived:
        loader = each(data.Numbers(4), num_workers=1)
        iterator = iter(loader)
        assert isinstance(iterator, ArenaIterator)
        assert len(list(iterator)) == 4
        assert isinstance(loader, torch.utils.data.DataLoader)
        assert issubclass(each, torch.utils.data.DataLoader)


def test_uninstalled_all_is_as_before():
    ipc.install()
    ours = iter(torch.utils.data.DataLoader(data.Numbers(4), num_workers=1))
    ipc.uninstall()
    ipc.uninstall()
    assert torch.utils.data.DataLoader is Theirs
    assert torch.utils.data.dataloader.DataLoader is Theirs
    assert not isinstance(iter(Theirs(data.Numbers(2), num_workers=1)),
                          ArenaIterator)
    assert not isinstance(Theirs(data.Numbers()), DataLoader)
    assert len(list(ours)) == 4
    assert isinstance(iter(DataLoader(data.Numbers(2), num_workers=1)),
                      ArenaIterator)


def test_what_others_put_in_torchs_place_before_stays(monkeypatch):
    seen = []
    stock = Theirs._get_iterator

    class Other(Theirs):
        pass

    def watched(self):
        seen.append(self.num_workers)
        return stock(self)

    monkeypatch.setattr(Theirs, "_get_iterator", watched)
    monkeypatch.setattr(torch.utils.data, "DataLoader", Other)
    ipc.install()
    try:
        loader = torch.utils.data.DataLoader(data.Numbers(4))
        assert isinstance(loader, DataLoader)
        assert len(list(loader)) == 4
        assert isinstance(iter(Theirs(data.Numbers(2), num_workers=1)),
                          ArenaIterator)
    finally:
        ipc.uninstall()
    assert seen == [0]
    assert Theirs._get_iterator is watched
    assert torch.utils.data.DataLoader is Other
    assert torch.utils.data.dataloader.DataLoader is Theirs


def test_what_others_put_in_haulways_place_stays():
    class Other(Theirs):
        pass

    stock = Theirs._get_iterator
    ipc.install()
    ours = Theirs._get_iterator
    Theirs._get_iterator = watched = lambda self: ours(self)
    torch.utils.data.DataLoader = Other
    try:
        ipc.uninstall()
        assert torch.utils.data.DataLoader is Other
        assert torch.utils.data.dataloader.DataLoader is Theirs
        assert Theirs._get_iterator is watched
        assert not isinstance(iter(Other(data.Numbers(2), num_workers=1)),
                              ArenaIterator)
    finally:
        Theirs._get_iterator = stock
        torch.utils.data.DataLoader = Theirs


def test_importing_the_package_does_not_import_torch():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, haulway.ipc\n"
         "assert 'torch' not in sys.modules\n"
         "assert 'DataLoader' in dir(haulway.ipc)\n"
         "try:\n    haulway.ipc.no_such_name\n"
         "except AttributeError as error:\n    print(error)"],
        capture_output=True, text=True,
    )
    assert done.stdout == (
        "module 'haulway.ipc' has no attribute 'no_such_name'\n"), done.stderr
