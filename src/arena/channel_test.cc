#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "haulway/worker.h"
#include "testing/shorthands.h"

namespace haulway {
namespace {

std::string Text(const Message& message) {
  return {reinterpret_cast<const char*>(message.bytes.data()),
          message.bytes.size()};
}

Result<bool> SendText(ChannelSender& sender, const std::string& text,
                      uint32_t epoch = 1) {
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  return sender.Send(MessageKind::kItem, epoch, {&part, 1});
}

// Returns a message whose length and content depend on `n`.
std::string Pattern(int n, size_t most) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::string text(random() % most, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(Channel, CarriesMessagesInOrder) {
  const auto channel = Channel::Create({.max_items = 8}).value();
  const auto sender = std::move(channel->OpenSender(-1)).value();
  const auto receiver = std::move(channel->OpenReceiver(-1)).value();
  const uint32_t epoch = receiver->StartPass();
  EXPECT_TRUE(*SendText(*sender, "one", epoch));
  EXPECT_TRUE(*SendText(*sender, "", epoch));
  EXPECT_TRUE(*SendText(*sender, "three", epoch));
  EXPECT_EQ(Text(receiver->Receive(0).value()), "one");
  EXPECT_EQ(Text(receiver->Receive(0).value()), "");
  EXPECT_EQ(Text(receiver->Receive(0).value()), "three");
  EXPECT_EQ(receiver->Receive(0).status().code(), Code::kTimeout);
}

TEST(Channel, MessagesLongerThanTheRingStream) {
  const auto channel =
      Channel::Create({.ring_bytes = 4096, .max_items = 4}).value();
  const auto sender = std::move(channel->OpenSender(-1)).value();
  const auto receiver = std::move(channel->OpenReceiver(-1)).value();
  const uint32_t epoch = receiver->StartPass();
  constexpr int kMessages = 300;
  std::thread worker([&] {
    for (int n = 0; n < kMessages; ++n) {
      EXPECT_TRUE(*SendText(*sender, Pattern(n, 50'000), epoch));
    }
  });
  for (int n = 0; n < kMessages; ++n) {
    EXPECT_EQ(Text(receiver->Receive(10 * test::kSecond).value()),
              Pattern(n, 50'000));
  }
  worker.join();
}

// A sender that ends in the middle of sending leaves nothing that a receiver
// could not take.
TEST(Channel, HeadersAreNotCut) {
  constexpr uint64_t kRing = uint64_t{64} << 10;  // Pages of every size fit.
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  const int peer = OpenPidFd(ended).value();
  ASSERT_EQ(::waitpid(ended, nullptr, 0), ended);
  const auto channel =
      Channel::Create({.ring_bytes = kRing, .max_items = 4}).value();
  const auto sender = std::move(channel->OpenSender(peer)).value();
  const auto receiver = std::move(channel->OpenReceiver(-1)).value();
  const uint32_t epoch = receiver->StartPass();
  // With its header of 16 bytes this fills the ring but for 8 bytes.
  const std::string most(kRing - 16 - 8, 'a');
  ASSERT_TRUE(*SendText(*sender, most, epoch));
  EXPECT_EQ(SendText(*sender, "next", epoch).status().code(),
            Code::kUnavailable);
  EXPECT_EQ(Text(receiver->Receive(0).value()), most);
  EXPECT_EQ(receiver->waiting_bytes(), 0U);
  ::close(peer);
}

// Else a producer without room would wait for a receiver that waits for it.
TEST(Channel, AWaitThatWasGivenUpDoesNotHideAnother) {
  const auto channel = Channel::Create({.max_items = 4}).value();
  const auto sender = std::move(channel->OpenSender(-1)).value();
  const auto receiver = std::move(channel->OpenReceiver(-1)).value();
  const uint32_t epoch = receiver->StartPass();
  std::thread parent([&] {
    EXPECT_EQ(Text(receiver->Receive(60 * test::kSecond).value()), "here");
  });
  while (!sender->parent_starves()) std::this_thread::yield();
  ChannelReceiver* const receivers[] = {receiver.get()};
  EXPECT_FALSE(ChannelReceiver::WaitForAny(receivers, 1));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!sender->parent_starves() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(sender->parent_starves());
  EXPECT_TRUE(*SendText(*sender, "here", epoch));
  parent.join();
}

TEST(Channel, KeptMessagesStayWhole) {
  const auto channel = Channel::Create({.max_items = 4}).value();
  const auto sender = std::move(channel->OpenSender(-1)).value();
  const auto receiver = std::move(channel->OpenReceiver(-1)).value();
  const uint32_t epoch = receiver->StartPass();
  ASSERT_TRUE(SendText(*sender, "kept", epoch).ok());
  ASSERT_TRUE(SendText(*sender, "next", epoch).ok());
  const Message kept = receiver->Receive(0).value();
  const Message next = receiver->Receive(0).value();
  EXPECT_EQ(Text(kept), "kept");
  EXPECT_EQ(Text(next), "next");
}

TEST(Channel, ANewPassStopsAnOldOne) {
  const auto channel = Channel::Create({.max_items = 1}).value();
  const auto sender = std::move(channel->OpenSender(-1)).value();
  const auto receiver = std::move(channel->OpenReceiver(-1)).value();
  const uint32_t first = receiver->StartPass();
  EXPECT_EQ(sender->WaitForPass(0).value(), first);
  EXPECT_TRUE(*SendText(*sender, "a", first));
  std::thread parent([&] { (void)receiver->StartPass(); });
  EXPECT_FALSE(*SendText(*sender, "b", first));  // Waits for room first.
  parent.join();
  EXPECT_EQ(receiver->Receive(0).value().epoch, first);
}

TEST(Channel, AbortEndsEveryWait) {
  const auto channel = Channel::Create({.max_items = 1}).value();
  const auto sender = std::move(channel->OpenSender(-1)).value();
  const auto receiver = std::move(channel->OpenReceiver(-1)).value();
  const uint32_t epoch = receiver->StartPass();
  ASSERT_TRUE(SendText(*sender, "a", epoch).ok());
  std::thread parent([&] { receiver->Abort(); });
  EXPECT_EQ(SendText(*sender, "b", epoch).status().code(), Code::kCancelled);
  EXPECT_EQ(sender->WaitForPass(epoch).status().code(), Code::kCancelled);
  parent.join();
}

TEST(Channel, SurvivesAPeerThatWritesRandomWords) {
  const auto channel =
      Channel::Create({.ring_bytes = 4096, .max_items = 1000}).value();
  const auto receiver = std::move(channel->OpenReceiver(-1)).value();
  void* mapped = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED,
                        channel->fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* words = static_cast<std::atomic<uint32_t>*>(mapped);
  std::mt19937 random(5);
  int messages = 0;
  for (int round = 0; round < 50'000; ++round) {
    words[random() % 2048].store(random() % 2 == 0 ? random()
                                                   : random() % 5000);
    const auto received = receiver->Receive(0);
    if (received.ok()) ++messages;
  }
  ::munmap(mapped, 8192);
  const auto sender = std::move(channel->OpenSender(-1)).value();
  (void)messages;
}

TEST(Channel, RefusesDescriptorsThatAreNoChannel) {
  const int fd = ::memfd_create("test", MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(fd, 8192), 0);
  EXPECT_EQ(Channel::Attach(fd).status().code(), Code::kCorrupt);
}

TEST(Worker, SendsItemsAndEnds) {
  const auto channel = Channel::Create({}).value();
  const auto worker =
      std::move(Worker::Start(channel, [](ChannelSender& sender,
                                          uint32_t epoch) {
        for (int n = 0; n < 100; ++n) {
          HAULWAY_TRY(SendText(sender, std::to_string(n), epoch).status());
        }
        return Status();
      })).value();
  ChannelReceiver& receiver = worker->receiver();
  EXPECT_EQ(receiver.Receive(10 * test::kSecond).value().kind,
            MessageKind::kReady);
  for (int pass = 0; pass < 3; ++pass) {
    const uint32_t epoch = receiver.StartPass();
    for (int n = 0; n < 100; ++n) {
      const Message message = receiver.Receive(10 * test::kSecond).value();
      EXPECT_EQ(message.epoch, epoch);
      EXPECT_EQ(Text(message), std::to_string(n));
    }
    EXPECT_EQ(receiver.Receive(10 * test::kSecond).value().kind,
              MessageKind::kFinished);
  }
}

TEST(Worker, AFailureReachesTheParent) {
  const auto channel = Channel::Create({}).value();
  const auto worker =
      std::move(Worker::Start(channel, [](ChannelSender&, uint32_t) {
        return Status(Code::kInternal, "no more");
      })).value();
  ChannelReceiver& receiver = worker->receiver();
  (void)receiver.StartPass();
  EXPECT_EQ(receiver.Receive(10 * test::kSecond).value().kind,
            MessageKind::kReady);
  const Message failed = receiver.Receive(10 * test::kSecond).value();
  EXPECT_EQ(failed.kind, MessageKind::kFailed);
  EXPECT_EQ(Text(failed), "no more");
}

// Sends numbered units through an arena, without end.
Status Flood(ChannelSender& sender, uint32_t epoch, ArenaWriter& writer) {
  std::vector<uint64_t> payload(2000);
  for (uint64_t n = 0;; ++n) {
    std::fill(payload.begin(), payload.end(), n);
    HAULWAY_TRY(writer.Begin(test::kSecond));
    HAULWAY_ASSIGN(
        const ArenaRange range,
        writer.Write(std::as_bytes(std::span(payload)), test::kSecond));
    HAULWAY_TRY(writer.Commit().status());
    const std::span<const std::byte> part =
        std::as_bytes(std::span<const ArenaRange>(&range, 1));
    HAULWAY_ASSIGN(const bool wanted,
                   sender.Send(MessageKind::kItem, epoch, {&part, 1}));
    if (!wanted) return Status();
  }
}

TEST(Worker, KilledAtRandomMomentsNothingIsTornAndTheParentKnows) {
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    ArenaOptions options;
    options.max_bytes = 64 << 10;
    const auto arena = Arena::Create(options).value();
    const auto reader = std::move(arena->OpenReader()).value();
    const auto channel = Channel::Create({}).value();
    const auto worker =
        std::move(Worker::Start(channel, [&](ChannelSender& sender,
                                             uint32_t epoch) {
          const auto writer = std::move(arena->OpenWriter()).value();
          return Flood(sender, epoch, *writer);
        })).value();
    ChannelReceiver& receiver = worker->receiver();
    (void)receiver.StartPass();
    const uint64_t last = random() % 60;
    std::chrono::steady_clock::time_point killed;
    for (uint64_t n = 0;;) {
      if (n == last) {
        ::kill(worker->pid(), SIGKILL);
        killed = std::chrono::steady_clock::now();
      }
      const auto message = receiver.Receive(10 * test::kSecond);
      if (!message.ok()) {
        EXPECT_EQ(message.status().code(), Code::kUnavailable);
        // 20 ms, plus time that other processes take.
        EXPECT_LT(std::chrono::steady_clock::now() - killed,
                  std::chrono::seconds(2));
        break;
      }
      if (message->kind != MessageKind::kItem) continue;
      ArenaRange range;
      ASSERT_EQ(message->bytes.size(), sizeof(range));
      std::memcpy(&range, message->bytes.data(), sizeof(range));
      const auto claim = reader->Claim(range.unit).value();
      const Buffer view =
          reader->View(claim, range.offset, range.bytes).value();
      std::vector<uint64_t> payload(view.size() / 8);
      std::memcpy(payload.data(), view.data(), view.size());
      EXPECT_THAT(payload, testing::Each(n));
      ++n;
    }
    EXPECT_EQ(worker->exit_code(), -SIGKILL);
  }
}

TEST(Worker, EndsWhenItsParentIsKilled) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const auto channel = Channel::Create({}).value();
    const auto worker =
        std::move(Worker::Start(channel, [](ChannelSender& sender,
                                            uint32_t epoch) {
          return sender.WaitForPass(epoch).status();
        })).value();
    const int pid = worker->pid();
    (void)worker->receiver().StartPass();
    if (::write(ends[1], &pid, sizeof(pid)) != sizeof(pid)) ::_exit(1);
    ::raise(SIGKILL);
  }
  int child = 0;
  ASSERT_EQ(::read(ends[0], &child, sizeof(child)),
            static_cast<ssize_t>(sizeof(child)));
  const auto pidfd = OpenPidFd(child);
  ::waitpid(parent, nullptr, 0);
  if (!pidfd.ok()) return;  // The process has ended already.
  pollfd ended = {*pidfd, POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 5000), 1);
}

TEST(WorkerLink, IsReadAsItWasWritten) {
  const WorkerLink link = ParseWorkerLink(FormatWorkerLink({3, 4, -1})).value();
  EXPECT_EQ(link.channel, 3);
  EXPECT_EQ(link.parent, 4);
  EXPECT_EQ(link.arena, -1);
  for (const char* bad :
       {"", "channel=3", "parent=4,arena=5", "channel=3,parent=x",
        "channel=3,parent=4,more=5", "channel=3,parent=4,arena=5x", "channel",
        "channel=3,parent=-2", "channel=3,parent=99999999999999"}) {
    EXPECT_EQ(ParseWorkerLink(bad).status().code(), Code::kInvalidArgument)
        << bad;
  }
}

TEST(Worker, ProgramsThatCannotBeRunAreDeadWorkers) {
  const auto channel = Channel::Create({}).value();
  EXPECT_EQ(Worker::Spawn(channel, nullptr, {}).status().code(),
            Code::kInvalidArgument);
  const auto worker =
      std::move(Worker::Spawn(channel, nullptr, {"/no/such/program"})).value();
  EXPECT_EQ(worker->receiver().Receive(10 * test::kSecond).status().code(),
            Code::kUnavailable);
  EXPECT_EQ(worker->exit_code(), 127);
}

}  // namespace
}  // namespace haulway
