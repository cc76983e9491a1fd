#include "load/choose_io.h"

#include <gtest/gtest.h>

#include <string>

namespace haulway {
namespace {

constexpr Machine kMachine{.cpus = 4, .available_memory = uint64_t{8} << 30};
constexpr uint64_t kGiB = uint64_t{1} << 30;

SourceTraits ColdDisk() {
  SourceTraits traits;
  traits.local_file = true;
  traits.direct = true;
  traits.uring = true;
  traits.file_system = "ext4";
  traits.resident = 0.12;
  return traits;
}

TEST(ChooseIo, ReadsAColdFileAroundThePageCache) {
  const IoChoice choice = ChooseIo(ColdDisk(), kMachine, {.all = kGiB}, {});
  EXPECT_EQ(choice.mode, IoMode::kUring);
  EXPECT_EQ(choice.reason,
            "12 % of it is in the page cache, ext4 takes direct reads");
  EXPECT_GT(choice.in_flight, 1);
}

TEST(ChooseIo, WithoutIoUringManyThreadsWaitForTheDevice) {
  SourceTraits traits = ColdDisk();
  traits.uring = false;
  const IoChoice choice = ChooseIo(traits, kMachine, {.all = kGiB}, {});
  EXPECT_EQ(choice.mode, IoMode::kDirect);
  EXPECT_GT(choice.threads, kMachine.cpus);
  EXPECT_EQ(ChooseIo(traits, kMachine, {.all = kGiB}, {.threads = 3}).threads,
            3);
}

TEST(ChooseIo, CopiesWhatIsInThePageCache) {
  SourceTraits traits = ColdDisk();
  traits.resident = 0.95;
  const IoChoice choice = ChooseIo(traits, kMachine, {.all = kGiB}, {});
  EXPECT_EQ(choice.mode, IoMode::kPread);
  EXPECT_EQ(choice.threads, kMachine.cpus);
  EXPECT_EQ(choice.reason, "95 % of it is in the page cache");
  traits.resident = 0.6;
  EXPECT_EQ(ChooseIo(traits, kMachine, {.all = kGiB}, {}).mode, IoMode::kPread);
  traits.resident = 0.59;
  EXPECT_EQ(ChooseIo(traits, kMachine, {.all = kGiB}, {}).mode, IoMode::kUring);
}

TEST(ChooseIo, MapsWhatIsMostlyInThePageCache) {
  SourceTraits traits = ColdDisk();
  const LoadSize bytes{.all = kGiB, .viewed = kGiB};
  traits.resident = 0.6;
  const IoChoice choice = ChooseIo(traits, kMachine, bytes, {});
  EXPECT_EQ(choice.mode, IoMode::kSnapshot);
  EXPECT_EQ(choice.reason,
            "60 % of it is in the page cache, mapped under a lease");
  traits.resident = 0.59;
  EXPECT_EQ(ChooseIo(traits, kMachine, bytes, {}).mode, IoMode::kUring);
}

TEST(ChooseIo, MapsWhatDoesNotFitIntoMemory) {
  const IoChoice choice = ChooseIo(ColdDisk(), kMachine, {.all = 9 * kGiB}, {});
  EXPECT_EQ(choice.mode, IoMode::kMmap);
  EXPECT_EQ(choice.reason, "9216 MiB do not fit into 8192 MiB of free memory");
}

TEST(ChooseIo, ReadsBufferedWhereNothingElseIsToBeHad) {
  SourceTraits traits = ColdDisk();
  traits.direct = false;
  traits.file_system = "tmpfs";
  IoChoice choice = ChooseIo(traits, kMachine, {.all = kGiB}, {});
  EXPECT_EQ(choice.mode, IoMode::kPread);
  EXPECT_EQ(choice.reason, "tmpfs takes no direct reads");
  choice = ChooseIo(ColdDisk(), kMachine, {.all = kMiB}, {});
  EXPECT_EQ(choice.mode, IoMode::kPread);
  EXPECT_EQ(choice.reason, "1 MiB are too few for direct reads");
  traits = ColdDisk();
  traits.remote = true;
  traits.file_system = "nfs";
  choice = ChooseIo(traits, kMachine, {.all = kGiB}, {});
  EXPECT_EQ(choice.mode, IoMode::kPread);
  EXPECT_GT(choice.threads, kMachine.cpus);
  EXPECT_EQ(choice.reason, "nfs is remote");
}

TEST(ChooseIo, LeavesBytesInMemoryWhereTheyAre) {
  SourceTraits traits;
  traits.views = true;
  EXPECT_EQ(ChooseIo(traits, kMachine, {.all = kGiB}, {}).mode, IoMode::kMmap);
  EXPECT_EQ(ChooseIo({}, kMachine, {.all = kGiB}, {}).mode, IoMode::kPread);
}

TEST(ChooseIo, DoesWhatIsAsked) {
  for (const IoMode io :
       {IoMode::kMmap, IoMode::kPread, IoMode::kDirect, IoMode::kUring}) {
    const IoChoice choice =
        ChooseIo(ColdDisk(), kMachine, {.all = kGiB}, {.io = io});
    EXPECT_EQ(choice.mode, io);
    EXPECT_EQ(choice.reason, "as asked");
  }
}

}  // namespace
}  // namespace haulway
