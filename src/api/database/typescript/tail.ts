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
