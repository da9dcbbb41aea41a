export type Json =
  | string
  | number
  | boolean
  | null
  | { [key: string]: Json | undefined }
  | Json[]

export type Database = {
  // Tells `createClient` which data API it speaks to.
  __InternalSupabase: {
    PostgrestVersion: "12.0.2"
  }
  private: {
    Tables: {
      diary: {
        Row: {
          id: number
          mood: Database["private"]["Enums"]["mood"] | null
          owner: number | null
          state: Database["public"]["Enums"]["order_state"] | null
        }
        Insert: {
          id: number
          mood?: Database["private"]["Enums"]["mood"] | null
          owner?: number | null
          state?: Database["public"]["Enums"]["order_state"] | null
        }
        Update: {
          id?: number
          mood?: Database["private"]["Enums"]["mood"] | null
          owner?: number | null
          state?: Database["public"]["Enums"]["order_state"] | null
        }
        Relationships: []
      }
    }
    Views: {
      [_ in never]: never
    }
    Functions: {
      [_ in never]: never
    }
    Enums: {
      mood: "sad" | "glad"
    }
    CompositeTypes: {
      [_ in never]: never
    }
  }
  public: {
    Tables: {
      customers: {
        Row: {
          address: Database["public"]["CompositeTypes"]["address"] | null
          born: string | null
          email: string
          id: number
          name: string
          settings: Json
          "weird-name": string | null
          full_name: string | null
        }
        Insert: {
          address?: Database["public"]["CompositeTypes"]["address"] | null
          born?: string | null
          email: string
          id?: never
          name: string
          settings?: Json
          "weird-name"?: string | null
        }
        Update: {
          address?: Database["public"]["CompositeTypes"]["address"] | null
          born?: string | null
          email?: string
          id?: never
          name?: string
          settings?: Json
          "weird-name"?: string | null
        }
        Relationships: []
      }
      invoices: {
        Row: {
          order_id: string
          sent: boolean
        }
        Insert: {
          order_id: string
          sent?: boolean
        }
        Update: {
          order_id?: string
          sent?: boolean
        }
        Relationships: [
          {
            foreignKeyName: "invoices_order_id_fkey"
            columns: ["order_id"]
            isOneToOne: true
            referencedRelation: "open_orders"
            referencedColumns: ["id"]
          },
          {
            foreignKeyName: "invoices_order_id_fkey"
            columns: ["order_id"]
            isOneToOne: true
            referencedRelation: "orders"
            referencedColumns: ["id"]
          },
          {
            foreignKeyName: "invoices_order_id_fkey"
            columns: ["order_id"]
            isOneToOne: true
            referencedRelation: "waiting"
            referencedColumns: ["order_id"]
          },
        ]
      }
      lines: {
        Row: {
          article: string
          line: number
          matrix: number[] | null
          order_id: string
        }
        Insert: {
          article: string
          line: number
          matrix?: number[] | null
          order_id: string
        }
        Update: {
          article?: string
          line?: number
          matrix?: number[] | null
          order_id?: string
        }
        Relationships: [
          {
            foreignKeyName: "lines_order_id_fkey"
            columns: ["order_id"]
            isOneToOne: false
            referencedRelation: "open_orders"
            referencedColumns: ["id"]
          },
          {
            foreignKeyName: "lines_order_id_fkey"
            columns: ["order_id"]
            isOneToOne: false
            referencedRelation: "orders"
            referencedColumns: ["id"]
          },
          {
            foreignKeyName: "lines_order_id_fkey"
            columns: ["order_id"]
            isOneToOne: false
            referencedRelation: "waiting"
            referencedColumns: ["order_id"]
          },
        ]
      }
      moods: {
        Row: {
          entry: Database["private"]["Tables"]["diary"]["Row"] | null
          mood: Database["private"]["Enums"]["mood"] | null
        }
        Insert: {
          entry?: Database["private"]["Tables"]["diary"]["Row"] | null
          mood?: Database["private"]["Enums"]["mood"] | null
        }
        Update: {
          entry?: Database["private"]["Tables"]["diary"]["Row"] | null
          mood?: Database["private"]["Enums"]["mood"] | null
        }
        Relationships: []
      }
      orders: {
        Row: {
          at: string
          customer_id: number
          id: string
          number: number
          shape: unknown | null
          state: Database["public"]["Enums"]["order_state"]
          states: Database["public"]["Enums"]["order_state"][] | null
          total: number
          with_tax: number | null
        }
        Insert: {
          at?: string
          customer_id: number
          id?: string
          number?: number
          shape?: unknown | null
          state?: Database["public"]["Enums"]["order_state"]
          states?: Database["public"]["Enums"]["order_state"][] | null
          total: number
          with_tax?: never
        }
        Update: {
          at?: string
          customer_id?: number
          id?: string
          number?: number
          shape?: unknown | null
          state?: Database["public"]["Enums"]["order_state"]
          states?: Database["public"]["Enums"]["order_state"][] | null
          total?: number
          with_tax?: never
        }
        Relationships: [
          {
            foreignKeyName: "orders_customer_id_fkey"
            columns: ["customer_id"]
            isOneToOne: false
            referencedRelation: "customers"
            referencedColumns: ["id"]
          },
        ]
      }
      returns: {
        Row: {
          line: number | null
          order_id: string | null
          reason: string | null
        }
        Insert: {
          line?: number | null
          order_id?: string | null
          reason?: string | null
        }
        Update: {
          line?: number | null
          order_id?: string | null
          reason?: string | null
        }
        Relationships: [
          {
            foreignKeyName: "returns_order_id_line_fkey"
            columns: ["order_id", "line"]
            isOneToOne: false
            referencedRelation: "articles"
            referencedColumns: ["order", "line"]
          },
          {
            foreignKeyName: "returns_order_id_line_fkey"
            columns: ["order_id", "line"]
            isOneToOne: false
            referencedRelation: "lines"
            referencedColumns: ["order_id", "line"]
          },
        ]
      }
    }
    Views: {
      articles: {
        Row: {
          article: string | null
          line: number | null
          order: string | null
        }
        Insert: {
          article?: string | null
          line?: number | null
          order?: string | null
        }
        Update: {
          article?: string | null
          line?: number | null
          order?: string | null
        }
        Relationships: [
          {
            foreignKeyName: "lines_order_id_fkey"
            columns: ["order"]
            isOneToOne: false
            referencedRelation: "open_orders"
            referencedColumns: ["id"]
          },
          {
            foreignKeyName: "lines_order_id_fkey"
            columns: ["order"]
            isOneToOne: false
            referencedRelation: "orders"
            referencedColumns: ["id"]
          },
          {
            foreignKeyName: "lines_order_id_fkey"
            columns: ["order"]
            isOneToOne: false
            referencedRelation: "waiting"
            referencedColumns: ["order_id"]
          },
        ]
      }
      open_orders: {
        Row: {
          customer_id: number | null
          id: string | null
          total: number | null
        }
        Insert: {
          customer_id?: number | null
          id?: string | null
          total?: number | null
        }
        Update: {
          customer_id?: number | null
          id?: string | null
          total?: number | null
        }
        Relationships: [
          {
            foreignKeyName: "orders_customer_id_fkey"
            columns: ["customer_id"]
            isOneToOne: false
            referencedRelation: "customers"
            referencedColumns: ["id"]
          },
        ]
      }
      parties: {
        Row: {
          id: number | null
        }
        Relationships: []
      }
      top: {
        Row: {
          best: number | null
          customer_id: number | null
        }
        Relationships: [
          {
            foreignKeyName: "orders_customer_id_fkey"
            columns: ["customer_id"]
            isOneToOne: false
            referencedRelation: "customers"
            referencedColumns: ["id"]
          },
        ]
      }
      totals: {
        Row: {
          customer_id: number | null
          total: number | null
        }
        Relationships: [
          {
            foreignKeyName: "orders_customer_id_fkey"
            columns: ["customer_id"]
            isOneToOne: false
            referencedRelation: "customers"
            referencedColumns: ["id"]
          },
        ]
      }
      waiting: {
        Row: {
          buyer: number | null
          lines: number | null
          order_id: string | null
          "{ :resno 1": string
        }
        Relationships: [
          {
            foreignKeyName: "orders_customer_id_fkey"
            columns: ["buyer"]
            isOneToOne: false
            referencedRelation: "customers"
            referencedColumns: ["id"]
          },
        ]
      }
    }
    Functions: {
      add:
        | {
          Args: { a: number; b?: number }
          Returns: number
        }
        | {
          Args: { a: string; b: string }
          Returns: string
        }
      echo: {
        Args: { "": Json }
        Returns: Json
      }
      first_order: {
        Args: never
        Returns: { at: string; customer_id: number; id: string; number: number; shape: unknown | null; state: Database["public"]["Enums"]["order_state"]; states: Database["public"]["Enums"]["order_state"][] | null; total: number; with_tax: number | null }
        SetofOptions: {
          from: "*"
          to: "orders"
          isOneToOne: true
          isSetofReturn: false
        }
      }
      full_name: {
        Args: { "": Database["public"]["Tables"]["customers"]["Row"] }
        Returns: string
      }
      nothing: {
        Args: never
        Returns: undefined
      }
      now_utc: {
        Args: never
        Returns: string
      }
      one_out: {
        Args: never
        Returns: number
      }
      orders_of: {
        Args: { customer: number }
        Returns: { at: string; customer_id: number; id: string; number: number; shape: unknown | null; state: Database["public"]["Enums"]["order_state"]; states: Database["public"]["Enums"]["order_state"][] | null; total: number; with_tax: number | null }[]
        SetofOptions: {
          from: "*"
          to: "orders"
          isOneToOne: false
          isSetofReturn: true
        }
      }
      split_name: {
        Args: { full_name: string }
        Returns: { first: string; last: string }
      }
      state_of: {
        Args: { id: string }
        Returns: Database["public"]["Enums"]["order_state"]
      }
      statistics: {
        Args: { since: string }
        Returns: { day: string; count: number }[]
      }
    }
    Enums: {
      order_state: "new" | "in transit" | "done"
    }
    CompositeTypes: {
      address: {
        street: string | null
        tags: string[] | null
        zip: string | null
      }
    }
  }
}

type Schemas = Omit<Database, "__InternalSupabase">

type SchemaName = keyof Schemas

type DefaultSchema = Schemas[Extract<SchemaName, "public">]

type InSchema = { schema: SchemaName }

/** Names in the default schema, or in the one that `Of` names. */
type Names<Kind extends keyof Schemas[SchemaName], Of> = Of extends InSchema
  ? keyof Schemas[Of["schema"]][Kind]
  : never

/** What `Of` names: `"name"`, or `{ schema: "…" }` together with a name. */
type Named<Kind extends keyof Schemas[SchemaName], Of, Name> = Of extends InSchema
  ? Name extends keyof Schemas[Of["schema"]][Kind]
    ? Schemas[Of["schema"]][Kind][Name]
    : never
  : Of extends keyof DefaultSchema[Kind]
    ? DefaultSchema[Kind][Of]
    : never

type Field<T, Part extends string> = T extends { [_ in Part]: infer Value } ? Value : never

/** A row of a table or view. */
export type Tables<
  Of extends keyof DefaultSchema["Tables"] | keyof DefaultSchema["Views"] | InSchema,
  Name extends Names<"Tables", Of> | Names<"Views", Of> = never,
> = Field<Named<"Tables", Of, Name> | Named<"Views", Of, Name>, "Row">

/** What a table takes for a new row. */
export type TablesInsert<
  Of extends keyof DefaultSchema["Tables"] | InSchema,
  Name extends Names<"Tables", Of> = never,
> = Field<Named<"Tables", Of, Name>, "Insert">

/** What a table takes for a change. */
export type TablesUpdate<
  Of extends keyof DefaultSchema["Tables"] | InSchema,
  Name extends Names<"Tables", Of> = never,
> = Field<Named<"Tables", Of, Name>, "Update">

/** The values of an enum. */
export type Enums<
  Of extends keyof DefaultSchema["Enums"] | InSchema,
  Name extends Names<"Enums", Of> = never,
> = Named<"Enums", Of, Name>

/** A composite type. */
export type CompositeTypes<
  Of extends keyof DefaultSchema["CompositeTypes"] | InSchema,
  Name extends Names<"CompositeTypes", Of> = never,
> = Named<"CompositeTypes", Of, Name>

export const Constants = {
  private: {
    Enums: {
      mood: ["sad", "glad"],
    },
  },
  public: {
    Enums: {
      order_state: ["new", "in transit", "done"],
    },
  },
} as const
