// Runs cells for the agent, one at a time, in a shell of the JDK's (jdk.jshell) in this process.
//
// Descriptor 0 is the agent's socket. A request is a line of words: `run ID CODE [NAME VALUE]...` or
// `fork ID IDENTITY INDEX GENERATION [NAME VALUE]...`, each text an x and the hexadecimal digits of its bytes. Each is answered by
// any number of events, which are lines of JSON, and then by {"event": "done", "id"}. Output goes to descriptors 1 and 2, which are
// pipes to the agent.

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import jdk.jshell.DeclarationSnippet;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis;
import jdk.jshell.UnresolvedReferenceException;

public class Driver {
    /** Characters, of which JSON has up to six bytes each. */
    private static final int MAX_TEXT = 1 << 20;

    /** What the JDK's own shell imports. */
    private static final String[] IMPORTS = {
        "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.util.*", "java.util.concurrent.*",
        "java.util.function.*", "java.util.prefs.*", "java.util.regex.*", "java.util.stream.*",
    };

    private static final FileOutputStream agent = new FileOutputStream(FileDescriptor.in);
    private static final BlockingQueue<String[]> cells = new LinkedBlockingQueue<>();

    /** What the running cell's own variables have outside of it: in the environment and as properties, null where they have nothing. */
    private static final Map<String, String[]> outside = new HashMap<>();

    private static JShell shell;
    private static boolean running;
    private static boolean interrupted;

    public static void main(String[] arguments) throws Exception {
        InputStream requests = new BufferedInputStream(new FileInputStream(FileDescriptor.in));
        System.setIn(InputStream.nullInputStream());
        // On E2B, the sandbox's variables are properties.
        System.getenv().forEach(System.getProperties()::putIfAbsent);
        shell = JShell.builder().executionEngine("local").build();
        for (String name : IMPORTS) {
            shell.eval("import " + name + ";");
        }
        sun.misc.Signal.handle(new sun.misc.Signal("INT"), signal -> interrupt());
        Thread reader = new Thread(() -> read(requests), "forkd-requests");
        reader.setDaemon(true);
        reader.start();
        send("{\"event\":\"ready\"}");
        for (;;) {
            String[] words = cells.take();
            run(decode(words[2]), variables(words, 3));
            System.out.flush();
            System.err.flush();
            send("{\"event\":\"done\",\"id\":" + words[1] + "}");
        }
    }

    /** Forks are taken while a cell runs, too. */
    private static void read(InputStream requests) {
        try {
            ByteArrayOutputStream line = new ByteArrayOutputStream();
            for (int next = requests.read(); next >= 0; next = requests.read()) {
                if (next != '\n') {
                    line.write(next);
                    continue;
                }
                String[] words = line.toString(StandardCharsets.US_ASCII).split(" ");
                line.reset();
                if (words[0].equals("run")) {
                    cells.add(words);
                } else {
                    afterFork(words);
                    send("{\"event\":\"done\",\"id\":" + words[1] + "}");
                }
            }
        } catch (IOException error) {
            // As its end.
        }
        // Without the agent, nobody will ever ask again.
        Runtime.getRuntime().halt(0);
    }

    /** Again and again until it is seen: while a snippet is compiled, there is nothing to stop yet. */
    private static synchronized void interrupt() {
        interrupted = running;
        while (running && interrupted) {
            stop();
            try {
                Driver.class.wait(100);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    private static void stop() {
        try {
            shell.stop();
        } catch (UnsupportedOperationException error) {
            // From JDK 20 on, threads cannot be stopped. What waits is interrupted below.
        }
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            ThreadGroup group = thread.getThreadGroup();
            if (group != null && group.getName().startsWith("JShell process local")) {
                thread.interrupt();
            }
        }
    }

    private static synchronized void setRunning(boolean now) {
        running = now;
    }

    private static synchronized boolean takeInterrupted() {
        boolean was = interrupted;
        interrupted = false;
        return was;
    }

    private static void run(String code, Map<String, String> variables) {
        try {
            enter(variables);
            takeInterrupted();
            setRunning(true);
            evaluate(code);
        } catch (Throwable error) {
            // Of this driver, or of the JDK's shell.
            sendError(error.getClass().getName(), String.valueOf(error.getMessage()), error.toString());
        } finally {
            setRunning(false);
            leave();
        }
    }

    private static void enter(Map<String, String> variables) throws ReflectiveOperationException {
        synchronized (outside) {
            for (Map.Entry<String, String> variable : variables.entrySet()) {
                String name = variable.getKey();
                outside.put(name, new String[] {environment().get(name), System.getProperty(name)});
                set(name, variable.getValue(), variable.getValue());
            }
        }
    }

    private static void leave() {
        synchronized (outside) {
            for (Map.Entry<String, String[]> variable : outside.entrySet()) {
                try {
                    set(variable.getKey(), variable.getValue()[0], variable.getValue()[1]);
                } catch (ReflectiveOperationException error) {
                    sendProblem(error);
                }
            }
            outside.clear();
        }
    }

    /** A fork's, which can come while a cell runs. */
    private static void setOutside(Map<String, String> variables) throws ReflectiveOperationException {
        synchronized (outside) {
            for (Map.Entry<String, String> variable : variables.entrySet()) {
                String value = variable.getValue();
                if (outside.replace(variable.getKey(), new String[] {value, value}) == null) {
                    set(variable.getKey(), value, value);
                }
            }
        }
    }

    private static void set(String name, String value, String property) throws ReflectiveOperationException {
        if (value == null) {
            environment().remove(name);
        } else {
            environment().put(name, value);
        }
        if (property == null) {
            System.clearProperty(name);
        } else {
            System.setProperty(name, property);
        }
    }

    /** One snippet after the other, up to the first that fails. */
    private static void evaluate(String code) {
        String rest = code;
        while (!rest.isBlank()) {
            SourceCodeAnalysis.CompletionInfo found = shell.sourceCodeAnalysis().analyzeCompletion(rest);
            SourceCodeAnalysis.Completeness completeness = found.completeness();
            if (completeness == SourceCodeAnalysis.Completeness.EMPTY) {
                return;
            }
            if (completeness == SourceCodeAnalysis.Completeness.DEFINITELY_INCOMPLETE) {
                sendError("SyntaxError", "the code ends in the middle of a snippet", "SyntaxError: the code ends in the middle of:\n" + rest);
                return;
            }
            boolean whole = completeness == SourceCodeAnalysis.Completeness.CONSIDERED_INCOMPLETE || found.source() == null;
            String source = whole ? rest : found.source();
            rest = whole ? "" : found.remaining();
            for (SnippetEvent event : shell.eval(source)) {
                if (takeInterrupted()) {
                    sendError("Interrupted", "execution was interrupted", "Interrupted: execution was interrupted");
                    return;
                }
                // What follows for earlier snippets is theirs.
                if (event.causeSnippet() == null && !take(event, rest.isBlank())) {
                    return;
                }
            }
        }
    }

    /** False if it failed. */
    private static boolean take(SnippetEvent event, boolean last) {
        Snippet snippet = event.snippet();
        if (event.exception() != null) {
            sendException(event.exception());
            return false;
        }
        switch (event.status()) {
            case REJECTED:
                sendRejected(snippet);
                return false;
            case RECOVERABLE_DEFINED:
            case RECOVERABLE_NOT_DEFINED:
                String missing = shell.unresolvedDependencies((DeclarationSnippet) snippet).collect(Collectors.joining(", "));
                System.err.println("cannot be used before this is declared: " + missing);
                return true;
            default:
                break;
        }
        boolean isValue = snippet.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND
            || snippet.kind() == Snippet.Kind.EXPRESSION && snippet.subKind() != Snippet.SubKind.ASSIGNMENT_SUBKIND;
        String value = event.value();
        if (last && isValue && value != null && !value.isEmpty()) {
            System.out.flush();
            send("{\"event\":\"result\",\"main\":true,\"fields\":{\"text\":" + quote(value) + "}}");
        }
        return true;
    }

    private static void sendRejected(Snippet snippet) {
        List<String> messages = new ArrayList<>();
        StringBuilder shown = new StringBuilder();
        String source = snippet.source();
        for (Diag diagnostic : shell.diagnostics(snippet).filter(Diag::isError).collect(Collectors.toList())) {
            String message = diagnostic.getMessage(Locale.ROOT);
            messages.add(message);
            int at = (int) Math.max(0, Math.min(diagnostic.getPosition(), source.length()));
            int begin = source.lastIndexOf('\n', at - 1) + 1;
            int end = source.indexOf('\n', at);
            String line = source.substring(begin, end < 0 ? source.length() : end);
            shown.append('\n').append(message).append('\n').append(line).append('\n').append(" ".repeat(at - begin)).append('^');
        }
        String value = String.join("; ", messages);
        sendError("CompilationError", value, "CompilationError:" + shown);
    }

    private static void sendException(JShellException exception) {
        StringBuilder trace = new StringBuilder();
        for (Throwable one = exception; one != null; one = one.getCause()) {
            trace.append(trace.length() > 0 ? "\nCaused by: " : "").append(name(one));
            trace.append(one.getMessage() == null ? "" : ": " + message(one));
            for (StackTraceElement frame : one.getStackTrace()) {
                String file = frame.getFileName() == null ? "?" : frame.getFileName();
                String place = frame.getClassName().isEmpty() ? frame.getMethodName() : frame.getClassName() + "." + frame.getMethodName();
                trace.append("\n\tat ").append(place).append(" (").append(file).append(':').append(frame.getLineNumber()).append(')');
            }
        }
        sendError(name(exception), message(exception), trace.toString());
    }

    private static String name(Throwable error) {
        return error instanceof EvalException ? ((EvalException) error).getExceptionClassName() : error.getClass().getSimpleName();
    }

    private static String message(Throwable error) {
        if (error instanceof UnresolvedReferenceException) {
            DeclarationSnippet snippet = ((UnresolvedReferenceException) error).getSnippet();
            return "not declared: " + shell.unresolvedDependencies(snippet).collect(Collectors.joining(", "));
        }
        return String.valueOf(error.getMessage());
    }

    private static void afterFork(String[] words) {
        try {
            System.setProperty("forkd.id", decode(words[2]));
            System.setProperty("forkd.index", words[3]);
            System.setProperty("forkd.generation", words[4]);
            setOutside(variables(words, 5));
            reseed();
        } catch (ReflectiveOperationException | IOException | RuntimeException error) {
            sendProblem(error);
        }
    }

    /** What System.getenv and new processes see. */
    @SuppressWarnings("unchecked")
    private static Map<String, String> environment() throws ReflectiveOperationException {
        Map<String, String> seen = System.getenv();
        return (Map<String, String>) field(seen.getClass(), "m").get(seen);
    }

    /** The generators that are nobody's own: they are in this process's memory, the same in every fork. */
    private static void reseed() throws ReflectiveOperationException, IOException {
        try (FileInputStream kernel = new FileInputStream("/dev/urandom")) {
            new SecureRandom().setSeed(kernel.readNBytes(32));
            ((Random) field(Class.forName("java.lang.Math$RandomNumberGeneratorHolder"), "randomNumberGenerator").get(null)).setSeed(number(kernel));
            ((AtomicLong) field(Random.class, "seedUniquifier").get(null)).set(number(kernel));
            ((AtomicLong) field(Class.forName("java.util.concurrent.ThreadLocalRandom"), "seeder").get(null)).set(number(kernel));
            ((AtomicLong) field(Class.forName("java.util.SplittableRandom"), "defaultGen").get(null)).set(number(kernel));
            Field seed = field(Thread.class, "threadLocalRandomSeed");
            for (Thread thread : Thread.getAllStackTraces().keySet()) {
                seed.setLong(thread, number(kernel));
            }
        }
    }

    private static long number(InputStream kernel) throws IOException {
        return ByteBuffer.wrap(kernel.readNBytes(8)).getLong();
    }

    /** The command line opens the packages for this. */
    private static Field field(Class<?> owner, String name) throws ReflectiveOperationException {
        Field field = owner.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    private static Map<String, String> variables(String[] words, int from) {
        Map<String, String> variables = new HashMap<>();
        for (int at = from; at + 1 < words.length; at += 2) {
            variables.put(decode(words[at]), decode(words[at + 1]));
        }
        return variables;
    }

    private static String decode(String word) {
        byte[] bytes = new byte[(word.length() - 1) / 2];
        for (int at = 0; at < bytes.length; at++) {
            bytes[at] = (byte) Integer.parseInt(word, 2 * at + 1, 2 * at + 3, 16);
        }
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static void sendProblem(Throwable error) {
        send("{\"event\":\"problem\",\"message\":" + quote(error.toString()) + "}");
    }

    private static void sendError(String name, String value, String traceback) {
        System.out.flush();
        System.err.flush();
        send("{\"event\":\"error\",\"name\":" + quote(name) + ",\"value\":" + quote(value) + ",\"traceback\":" + quote(traceback) + "}");
    }

    private static void send(String message) {
        byte[] bytes = (message + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (agent) {
            try {
                agent.write(bytes);
            } catch (IOException error) {
                Runtime.getRuntime().halt(0);
            }
        }
    }

    private static String quote(String text) {
        String cut = text.length() <= MAX_TEXT ? text : text.substring(0, MAX_TEXT) + "\n[cut: " + text.length() + " characters in all]";
        StringBuilder quoted = new StringBuilder(cut.length() + 2).append('"');
        for (int at = 0; at < cut.length(); at++) {
            char character = cut.charAt(at);
            if (character == '"' || character == '\\') {
                quoted.append('\\').append(character);
            } else if (character < ' ' || Character.isSurrogate(character)) {
                boolean pair = Character.isHighSurrogate(character) && at + 1 < cut.length() && Character.isLowSurrogate(cut.charAt(at + 1));
                if (pair) {
                    quoted.append(character).append(cut.charAt(++at));
                } else {
                    // Half a character is no text.
                    quoted.append(character < ' ' ? String.format("\\u%04x", (int) character) : "\ufffd");
                }
            } else {
                quoted.append(character);
            }
        }
        return quoted.append('"').toString();
    }
}
