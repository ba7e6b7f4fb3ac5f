package gantry.interop;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As much JSON as the requests and answers need: ordered objects, exact longs, ASCII output. */
final class Json {
    private Json() { }

    static Map<String, Object> obj(Object... kv) {
        Map<String, Object> m = new LinkedHashMap<>();
        for (int i = 0; i < kv.length; i += 2) {
            m.put((String) kv[i], kv[i + 1]);
        }
        return m;
    }

    static List<Object> arr(Object... v) {
        return new ArrayList<>(Arrays.asList(v));
    }

    @SuppressWarnings("unchecked")
    static <T> T cast(Object o) {
        return (T) o;
    }

    static String hex(byte[] b) {
        StringBuilder s = new StringBuilder(b.length * 2);
        for (byte x : b) {
            s.append(Character.forDigit((x >> 4) & 15, 16)).append(Character.forDigit(x & 15, 16));
        }
        return s.toString();
    }

    static String sha256(byte[] b) {
        try {
            return hex(MessageDigest.getInstance("SHA-256").digest(b));
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }

    // ---- writing ----

    static String text(Object o) {
        StringBuilder b = new StringBuilder(1 << 16);
        put(b, o);
        return b.toString();
    }

    private static void put(StringBuilder b, Object o) {
        if (o instanceof Map) {
            char sep = '{';
            for (Map.Entry<?, ?> e : ((Map<?, ?>) o).entrySet()) {
                b.append(sep);
                put(b, String.valueOf(e.getKey()));
                b.append(':');
                put(b, e.getValue());
                sep = ',';
            }
            b.append(sep == '{' ? "{}" : "}");
        } else if (o instanceof Iterable) {
            char sep = '[';
            for (Object e : (Iterable<?>) o) {
                b.append(sep);
                put(b, e);
                sep = ',';
            }
            b.append(sep == '[' ? "[]" : "]");
        } else if (o == null || o instanceof Boolean || o instanceof Number) {
            b.append(o);
        } else {
            b.append('"');
            String s = String.valueOf(o);
            for (int i = 0; i < s.length(); i++) {
                char c = s.charAt(i);
                if (c == '"' || c == '\\') {
                    b.append('\\').append(c);
                } else if (c < 0x20 || c > 0x7e) {
                    b.append(String.format("\\u%04x", (int) c));
                } else {
                    b.append(c);
                }
            }
            b.append('"');
        }
    }

    // ---- reading ----

    static Map<String, Object> object(String s) {
        return cast(new Reader(s).value());
    }

    /** Reads what Go's encoder writes; numbers are longs. */
    private static final class Reader {
        private final String s;
        private int i;

        Reader(String s) {
            this.s = s;
        }

        private char next() {
            while (s.charAt(i) <= ' ') {
                i++;
            }
            return s.charAt(i);
        }

        Object value() {
            char c = next();
            if (c == '{') {
                i++;
                Map<String, Object> m = new LinkedHashMap<>();
                if (next() == '}') {
                    i++;
                    return m;
                }
                while (true) {
                    next();
                    String k = string();
                    next();
                    i++; // the colon
                    m.put(k, value());
                    next();
                    if (s.charAt(i++) == '}') {
                        return m;
                    }
                }
            }
            if (c == '[') {
                i++;
                List<Object> l = new ArrayList<>();
                if (next() == ']') {
                    i++;
                    return l;
                }
                while (true) {
                    l.add(value());
                    next();
                    if (s.charAt(i++) == ']') {
                        return l;
                    }
                }
            }
            if (c == '"') {
                return string();
            }
            int start = i;
            while (i < s.length() && ",]} \n\t\r".indexOf(s.charAt(i)) < 0) {
                i++;
            }
            String t = s.substring(start, i);
            switch (t) {
                case "null":
                    return null;
                case "true":
                    return Boolean.TRUE;
                case "false":
                    return Boolean.FALSE;
                default:
                    return Long.valueOf(t);
            }
        }

        private String string() {
            StringBuilder b = new StringBuilder();
            i++;
            while (s.charAt(i) != '"') {
                char c = s.charAt(i++);
                if (c == '\\') {
                    c = s.charAt(i++);
                    switch (c) {
                        case 'u':
                            c = (char) Integer.parseInt(s.substring(i, i + 4), 16);
                            i += 4;
                            break;
                        case 'n':
                            c = '\n';
                            break;
                        case 'r':
                            c = '\r';
                            break;
                        case 't':
                            c = '\t';
                            break;
                        case 'b':
                            c = '\b';
                            break;
                        case 'f':
                            c = '\f';
                            break;
                        default:
                            break; // the character itself
                    }
                }
                b.append(c);
            }
            i++;
            return b.toString();
        }
    }
}
