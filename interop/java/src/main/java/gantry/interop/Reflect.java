package gantry.interop;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

/** Calls what is not in every version, or not public. */
final class Reflect {
    private Reflect() { }

    /** The value of a field of any visibility, null where there is none. */
    static Object get(Object o, String name) throws IllegalAccessException {
        for (Class<?> c = o.getClass(); c != null; c = c.getSuperclass()) {
            for (Field f : c.getDeclaredFields()) {
                if (f.getName().equals(name)) {
                    f.setAccessible(true);
                    return f.get(o);
                }
            }
        }
        return null;
    }

    private static Method method(Object o, String name, int args) {
        for (Class<?> c = o.getClass(); c != null; c = c.getSuperclass()) {
            for (Method m : c.getDeclaredMethods()) {
                if (m.getName().equals(name) && m.getParameterCount() == args) {
                    m.setAccessible(true);
                    return m;
                }
            }
        }
        for (Method m : o.getClass().getMethods()) { // default methods of interfaces
            if (m.getName().equals(name) && m.getParameterCount() == args) {
                m.setAccessible(true);
                return m;
            }
        }
        return null;
    }

    static boolean has(Object o, String name, int args) {
        return method(o, name, args) != null;
    }

    static Object call(Object o, String name, Object... args) throws Exception {
        Method m = method(o, name, args.length);
        if (m == null) {
            throw new NoSuchMethodException(o.getClass().getName() + "." + name + "/" + args.length);
        }
        try {
            return m.invoke(o, args);
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof Exception) {
                throw (Exception) e.getCause();
            }
            throw e;
        }
    }

    static long number(Object o, String name, Object... args) throws Exception {
        return ((Number) call(o, name, args)).longValue();
    }

    static boolean hasClass(String name) {
        try {
            Class.forName(name, false, Reflect.class.getClassLoader());
            return true;
        } catch (ClassNotFoundException | LinkageError e) {
            return false;
        }
    }
}
