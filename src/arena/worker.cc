#include "haulway/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/posix.h"

namespace haulway {

namespace {

constexpr int kGraceMs = 1000;

// Runs the child until its end.
Status Serve(Channel& channel, int parent, const Worker::Produce& produce) {
  HAULWAY_ASSIGN(auto sender, channel.OpenSender(parent));
  HAULWAY_TRY(sender->Send(MessageKind::kReady, 0, {}).status());
  uint32_t epoch = 0;
  while (true) {
    const Result<uint32_t> next = sender->WaitForPass(epoch);
    // The worker was told to end, or the parent is gone.
    if (!next.ok()) return Status();
    epoch = *next;
    const Status made = produce(*sender, epoch);
    if (!made.ok()) {
      const std::span<const std::byte> text =
          std::as_bytes(std::span(made.message()));
      (void)sender->Send(MessageKind::kFailed, epoch, {&text, 1});
      return made;
    }
    HAULWAY_TRY(sender->Send(MessageKind::kFinished, epoch, {}).status());
  }
}

}  // namespace

Status EndWithPeer(int pidfd, int grace_ms, std::function<void()> on_death) {
  const auto watch = [pidfd, grace_ms, on_death = std::move(on_death)] {
    pollfd ended = {pidfd, POLLIN, 0};
    while (::poll(&ended, 1, -1) < 0 && errno == EINTR) {
    }
    if (on_death) on_death();
    (void)::poll(nullptr, 0, grace_ms);
    ::_exit(1);
  };
  try {
    std::thread(watch).detach();
  } catch (const std::system_error& error) {
    return Status::FromErrno(error.code().value(), "cannot start a thread");
  }
  return Status();
}

Result<std::unique_ptr<Worker>> Worker::Start(std::shared_ptr<Channel> channel,
                                              Produce produce) {
  HAULWAY_ASSIGN(const int self_number, OpenPidFd(::getpid()));
  const UniqueFd self(self_number);
  const pid_t pid = ::fork();
  if (pid < 0) return Status::FromErrno(errno, "cannot fork");
  if (pid == 0) {
    (void)EndWithPeer(self.get(), kGraceMs, {});
    const Status served = Serve(*channel, self.get(), produce);
    ::_exit(served.ok() ? 0 : 1);
  }
  return Watch(pid, *channel);
}

Result<std::unique_ptr<Worker>> Worker::Spawn(
    std::shared_ptr<Channel> channel, const std::shared_ptr<Arena>& arena,
    std::vector<std::string> command) {
  if (command.empty()) {
    return Status(Code::kInvalidArgument, "a worker needs a program");
  }
  HAULWAY_ASSIGN(const int self_number, OpenPidFd(::getpid()));
  const UniqueFd self(self_number);
  const WorkerLink link = {channel->fd(), self.get(),
                           arena == nullptr ? -1 : arena->fd()};
  command.push_back(FormatWorkerLink(link));
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return Status::FromErrno(errno, "cannot fork");
  if (pid == 0) {
    for (const int fd : {link.channel, link.parent, link.arena}) {
      if (fd >= 0) (void)::fcntl(fd, F_SETFD, 0);
    }
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  return Watch(pid, *channel);
}

Result<std::unique_ptr<Worker>> Worker::Watch(int pid, Channel& channel) {
  std::unique_ptr<Worker> worker(new Worker());
  worker->pid_ = pid;
  HAULWAY_ASSIGN(worker->pidfd_, OpenPidFd(pid));
  HAULWAY_ASSIGN(worker->receiver_, channel.OpenReceiver(worker->pidfd_));
  return worker;
}

std::string FormatWorkerLink(const WorkerLink& link) {
  return fmt::format("channel={},parent={},arena={}", link.channel, link.parent,
                     link.arena);
}

Result<WorkerLink> ParseWorkerLink(std::string_view text) {
  WorkerLink link;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view field = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), field.size() + 1));
    const size_t equals = field.find('=');
    int* number = nullptr;
    if (equals != std::string_view::npos) {
      const std::string_view name = field.substr(0, equals);
      if (name == "channel") number = &link.channel;
      if (name == "parent") number = &link.parent;
      if (name == "arena") number = &link.arena;
    }
    const char* end = field.data() + field.size();
    if (number == nullptr ||
        std::from_chars(field.data() + equals + 1, end, *number).ptr != end ||
        *number < -1) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("not a link to a parent: \"{}\"", text.substr(0, 64)));
    }
  }
  if (link.channel < 0 || link.parent < 0) {
    return Status(Code::kInvalidArgument,
                  "a link to a parent needs a channel and the parent");
  }
  return link;
}

Status ServeParent(
    const WorkerLink& link,
    const std::function<Status(ChannelSender& sender, ArenaWriter* arena,
                               uint32_t epoch)>& produce) {
  const UniqueFd parent(link.parent);
  HAULWAY_ASSIGN(const auto channel, Channel::Attach(link.channel));
  std::unique_ptr<ArenaWriter> writer;
  if (link.arena >= 0) {
    HAULWAY_ASSIGN(const auto arena, Arena::Attach(link.arena));
    HAULWAY_ASSIGN(writer, arena->OpenWriter());
  }
  HAULWAY_TRY(EndWithPeer(parent.get(), kGraceMs, {}));
  return Serve(*channel, parent.get(),
               [&](ChannelSender& sender, uint32_t epoch) {
                 return produce(sender, writer.get(), epoch);
               });
}

std::optional<int> Worker::exit_code() {
  if (exit_code_.has_value()) return exit_code_;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  exit_code_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  return exit_code_;
}

Worker::~Worker() {
  if (receiver_ != nullptr) receiver_->Abort();
  if (pid_ > 0 && !exit_code().has_value()) {
    pollfd ended = {pidfd_, POLLIN, 0};
    if (pidfd_ < 0 || ::poll(&ended, 1, kGraceMs) <= 0) {
      (void)::kill(pid_, SIGKILL);
    }
    int status = 0;
    (void)::waitpid(pid_, &status, 0);
  }
  if (pidfd_ >= 0) ::close(pidfd_);
}

}  // namespace haulway
