// Declares the functions that add each file's bindings to the module.

#pragma once

#include <nanobind/nanobind.h>

namespace haulway::python {

void BindEnvironment(nanobind::module_& module);
void BindFormats(nanobind::module_& module);
void BindOptions(nanobind::module_& module);
void BindDcp(nanobind::module_& module);
void BindDelta(nanobind::module_& module);
void BindDeltaApply(nanobind::module_& module);
void BindCheckpoint(nanobind::module_& module);
void BindTensors(nanobind::module_& module);
void BindSigning(nanobind::module_& module);
void BindVerify(nanobind::module_& module);
void BindVersionPublisher(nanobind::module_& module);
void BindFolder(nanobind::module_& module);
void BindArchive(nanobind::module_& module);
void BindSave(nanobind::module_& module);
void BindConvert(nanobind::module_& module);
void BindCompare(nanobind::module_& module);
void BindSelect(nanobind::module_& module);
void BindSafetensors(nanobind::module_& module);
void BindLegacy(nanobind::module_& module);
void BindTensorizer(nanobind::module_& module);
void BindArena(nanobind::module_& module);
void BindChannel(nanobind::module_& module);
void BindShared(nanobind::module_& module);
void BindPublish(nanobind::module_& module);
void BindRemote(nanobind::module_& module);
void BindRuns(nanobind::module_& module);
void BindDevice(nanobind::module_& module);
void BindItems(nanobind::module_& module);

}  // namespace haulway::python
