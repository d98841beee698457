# Runs cells for the agent, one at a time, in the global environment.
#
# R cannot open a descriptor that it was given, so two `cat` carry the requests and the events between it and the agent's socket, which is
# descriptor 3. A request is a line of words: `run ID CODE [NAME VALUE]...` or `fork ID IDENTITY INDEX GENERATION [NAME VALUE]...`, each
# text an x and the hexadecimal digits of its bytes. Each is answered by any number of events, which are lines of JSON, and then by
# {"event": "done", "id", "rests"}. Output goes to descriptors 1 and 2, which are pipes to the agent.
#
# This is evaluated in an environment below base's: what code assigns in the global one is not found here.

MAX_TEXT <- 1048576L # characters, of which JSON has up to 12 bytes each
MAX_PICTURE <- 6291456L # bytes

# An interrupt is sent to the whole process group, and is meant for the code: both `cat` ignore it.
events <- pipe("trap '' INT; exec cat >&3", "w")
plots <- tempfile("forkd-plots-")
device <- 0L

send <- function(...) {
  writeLines(paste0("{", paste0(..., collapse = ""), "}"), events, useBytes = TRUE)
  flush(events)
}

string <- function(text) {
  text <- paste(text, collapse = "\n")
  # What is not UTF-8 becomes <xx>.
  text <- iconv(enc2utf8(text), "UTF-8", "UTF-8", sub = "byte")
  characters <- nchar(text)
  if (characters > MAX_TEXT) text <- sprintf("%s\n[cut: %d characters in all]", substr(text, 1L, MAX_TEXT), characters)
  text <- gsub("\\", "\\\\", text, fixed = TRUE)
  text <- gsub("\"", "\\\"", text, fixed = TRUE)
  for (code in 1:31) text <- gsub(intToUtf8(code), sprintf("\\u%04x", code), text, fixed = TRUE)
  paste0("\"", text, "\"")
}

base64 <- function(bytes) {
  padding <- (3L - length(bytes) %% 3L) %% 3L
  groups <- matrix(as.integer(c(bytes, raw(padding))), nrow = 3L)
  numbers <- groups[1L, ] * 65536L + groups[2L, ] * 256L + groups[3L, ]
  digits <- rbind(numbers %/% 262144L, numbers %/% 4096L %% 64L, numbers %/% 64L %% 64L, numbers %% 64L)
  text <- c(LETTERS, letters, 0:9, "+", "/")[digits + 1L]
  if (padding > 0L) text[length(text) - seq_len(padding) + 1L] <- "="
  paste(text, collapse = "")
}

decoded <- function(word) {
  if (nchar(word) < 2L) return("")
  at <- seq.int(2L, nchar(word), 2L)
  text <- rawToChar(as.raw(strtoi(substring(word, at, at + 1L), 16L)))
  Encoding(text) <- "UTF-8"
  text
}

variables <- function(words) {
  texts <- vapply(words, decoded, "", USE.NAMES = FALSE)
  odd <- seq_along(texts) %% 2L == 1L
  structure(texts[!odd], names = texts[odd])
}

set_variables <- function(values) {
  if (length(values)) do.call(Sys.setenv, as.list(values))
}

# What code draws without a device of its own goes to one of these files, a file a page.
open_device <- function(...) {
  dir.create(plots, showWarnings = FALSE, mode = "0700")
  type <- if (capabilities("cairo")) "cairo" else getOption("bitmapType")
  grDevices::png(file.path(plots, "%05d.png"), width = 7, height = 5, units = "in", res = 100, type = type)
  device <<- grDevices::dev.cur()
}

show_plots <- function() {
  if (device %in% grDevices::dev.list()) grDevices::dev.off(device)
  device <<- 0L
  for (file in list.files(plots, full.names = TRUE)) {
    bytes <- readBin(file, "raw", MAX_PICTURE + 1L)
    unlink(file)
    if (length(bytes) > MAX_PICTURE) {
      message("[a plot of more than 6 MiB is left out]")
    } else {
      send("\"event\":\"result\",\"main\":false,\"fields\":{\"text\":\"<plot>\",\"png\":\"", base64(bytes), "\"}")
    }
  }
}

show_value <- function(value, main) {
  # In the global environment, where methods that code has defined are found.
  call <- as.call(list(base::print, value))
  text <- utils::capture.output(allowInterrupts(eval(call, globalenv())))
  if (length(text)) {
    send("\"event\":\"result\",\"main\":", if (main) "true" else "false", ",\"fields\":{\"text\":", string(text), "}")
  }
}

send_error <- function(name, value, traceback) {
  send("\"event\":\"error\",\"name\":", string(name), ",\"value\":", string(value), ",\"traceback\":", string(traceback))
}

# The calls between the code's own first one and the handler.
calls_of_code <- function(calls) {
  is_ours <- function(call) is.call(call) && any(as.character(call) == "forkd_expression")
  first <- which(vapply(calls, is_ours, NA))
  if (!length(first)) return(character())
  calls <- calls[-seq_len(max(first))]
  words <- vapply(calls, function(call) deparse(call, nlines = 1L)[1L], "")
  words <- words[!grepl("^(\\.handleSimpleError\\(|h\\(simpleError\\(|\\(function \\(condition\\)|\\(function \\(e\\))", words)]
  if (length(words)) paste0(seq_along(words), ". ", substr(words, 1L, 200L)) else character()
}

parse_error <- function(condition) {
  stop(structure(list(message = conditionMessage(condition), call = NULL), class = c("ParseError", "error", "condition")))
}

describe <- function(condition, calls) {
  name <- class(condition)[1L]
  if (name == "simpleError") name <- "Error"
  value <- conditionMessage(condition)
  call <- conditionCall(condition)
  place <- if (is.null(call) || any(as.character(call) == "forkd_expression")) "" else paste0(" in ", deparse(call, nlines = 1L)[1L])
  trace <- calls_of_code(calls)
  send_error(name, value, c(paste0(name, place, ": ", value), if (length(trace)) c("Traceback:", trace)))
}

# R keeps warnings until it is at its prompt again, which it never is.
warn <- function(condition) {
  level <- getOption("warn")
  if (is.numeric(level) && level >= 2) return(invisible())
  if (is.numeric(level) && level < 0) invokeRestart("muffleWarning")
  call <- conditionCall(condition)
  place <- if (is.null(call) || any(as.character(call) == "forkd_expression")) "" else paste0(" in ", deparse(call, nlines = 1L)[1L], " :")
  base::message("Warning message", if (nchar(place)) place else ":", " ", conditionMessage(condition))
  invokeRestart("muffleWarning")
}

run <- function(code, environment) {
  before <- Sys.getenv(names(environment), unset = NA, names = TRUE)
  on.exit({
    set_variables(before[!is.na(before)])
    Sys.unsetenv(names(before)[is.na(before)])
  })
  set_variables(environment)
  calls <- list()
  work <- function() {
    expressions <- tryCatch(parse(text = code, keep.source = TRUE, encoding = "UTF-8"), error = parse_error)
    for (index in seq_along(expressions)) {
      forkd_expression <- expressions[[index]]
      outcome <- allowInterrupts(withVisible(eval(forkd_expression, globalenv())))
      if (outcome$visible) show_value(outcome$value, index == length(expressions))
    }
    show_plots()
  }
  tryCatch(
    withCallingHandlers(work(), error = function(condition) calls <<- sys.calls(), warning = warn),
    error = function(condition) describe(condition, calls),
    interrupt = function(condition) {
      send_error("Interrupted", "execution was interrupted", "Interrupted: execution was interrupted")
    }
  )
  # A sink or a device that an error has left.
  while (sink.number() > 0L) sink()
  try(show_plots(), silent = TRUE)
}

after_fork <- function(words) {
  set_variables(variables(words[-(1:5)]))
  identity <- list(id = decoded(words[3L]), index = as.numeric(words[4L]), generation = as.numeric(words[5L]))
  assign("forkd_identity", identity, globalenv())
  # The generator is in this process's memory: every fork has the same one.
  set.seed(bitwAnd(readBin("/dev/urandom", "integer"), 2147483647L))
}

# As base's, but for the two connections to the agent: closing one waits for its `cat` to end, which it never does.
close_all_connections <- function() {
  while (sink.number() > 0L) sink()
  kept <- c(0:2, as.integer(requests), as.integer(events))
  for (number in setdiff(getAllConnections(), kept)) close(getConnection(number))
  invisible()
}

serve <- function() {
  options(device = open_device)
  unlockBinding("closeAllConnections", baseenv())
  assign("closeAllConnections", close_all_connections, baseenv())
  lockBinding("closeAllConnections", baseenv())
  send("\"event\":\"ready\"")
  repeat {
    line <- readLines(requests, n = 1L)
    # Without the agent, nobody will ever ask again.
    if (!length(line)) quit("no")
    # An interrupt that came when the code had ended is nobody's.
    tryCatch(allowInterrupts(Sys.sleep(0.001)), interrupt = function(condition) NULL)
    words <- strsplit(line, " ", fixed = TRUE)[[1L]]
    tryCatch(
      if (words[1L] == "run") run(decoded(words[3L]), variables(words[-(1:3)])) else after_fork(words),
      error = function(condition) {
        if (words[1L] == "run") describe(condition, list())
        else send("\"event\":\"problem\",\"message\":", string(conditionMessage(condition)))
      }
    )
    # One thread, which waits for the next request; what code has started is not its own.
    send("\"event\":\"done\",\"id\":", words[2L], ",\"rests\":true")
  }
}

suspendInterrupts(serve())
